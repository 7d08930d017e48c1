"""PACKED MODELS: one file with the weights as a program reads them."""
