"""Arenas in huge pages, transfers between host and device, atomic files."""
