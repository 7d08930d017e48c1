"""GGUF files: header, metadata as a config, tensors in floating point or as the codes that the file holds."""
