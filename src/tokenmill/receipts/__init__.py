"""Receipts: what a text was computed from and with, under a hash, so that anybody with the model can check it."""
