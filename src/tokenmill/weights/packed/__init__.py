"""Packed models: one file with the weights in the layout that a program reads."""
