"""HOW FAST, HOW GOOD: what a model costs, and later what it reaches."""
