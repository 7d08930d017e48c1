"""TORCH.COMPILE: the same modules compiled for a few shapes, and how a step is cut into those shapes."""
