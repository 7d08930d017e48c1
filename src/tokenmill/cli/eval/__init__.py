"""`tokenmill eval`: the verbs that say how good a model is."""
