"""Codes of quantised directories, of every `quant_method` that the registry names.

Each method has a file that describes its tensors, without torch. The files whose names end in _tensors compute with
them.
"""
