"""Checkpoints written anew, converted or quantised."""
