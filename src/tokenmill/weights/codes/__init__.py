"""Codes of quantised directories: those of `tokenmill quantize`, GPTQ and AWQ.

Each method has a file that describes its tensors, without torch, and one that computes with them.
"""
