"""Penalties, filters and the draw, each row by itself."""
