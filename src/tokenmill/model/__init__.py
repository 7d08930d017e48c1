"""One packed decoder in plain PyTorch, and the families that are data for it."""
