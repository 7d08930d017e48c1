"""SMALLER WEIGHTS: how the matrices of a model are stored and multiplied."""
