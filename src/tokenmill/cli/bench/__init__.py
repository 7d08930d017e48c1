"""`tokenmill bench`: the verbs that measure."""
