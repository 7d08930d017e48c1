"""The tool calls of each model family: one description of a format gives both the grammar and the parser."""
