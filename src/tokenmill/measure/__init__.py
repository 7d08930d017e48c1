"""HOW FAST, HOW GOOD: what a model costs, what it reaches, and how near to the machine's limit that is."""
