"""TENSOR FUNCTIONS, NO STATE: what the model computes with and what a faster form of it would replace."""
