"""GGUF FILES: header, metadata as a config, tensors as numbers or as the codes they are."""
