"""Program compiled: the modules through torch.compile for a few shapes, and how a step is split into those shapes."""
