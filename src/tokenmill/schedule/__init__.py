"""Sequences, the plan of a step, and the blocks of the cache, in plain integers without torch."""
