"""Functions that a model may call: how each family writes a call, from which the grammar and the parser come."""
