"""The command line: one file per verb. Nothing here imports torch; a verb resolves what is heavy when it runs."""
