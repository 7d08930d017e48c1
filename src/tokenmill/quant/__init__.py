"""Schemes: how the matrices of a model are stored and multiplied, as facts and as modules."""
