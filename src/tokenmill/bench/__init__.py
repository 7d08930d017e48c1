"""Runs compared: points, series, the ladder, other engines in turn, load on a server, pictures."""
