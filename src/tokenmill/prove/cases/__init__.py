"""The cases of a check: each asks the same request under two or more circumstances. One file each, and one line in the
registry, where their names and what they compare are told.
"""
