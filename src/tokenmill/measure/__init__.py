"""Measurements of a run: its memory and traffic, its steps, its perplexity, and what the machine can do."""
