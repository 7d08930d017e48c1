"""WHAT A RUN COSTS AND TOOK: its memory and traffic, its steps, its perplexity, and what the machine can do."""
