"""Attention backends, devices, torch's threads, and the shared library of `native/`."""
