"""The parser's side of every verb: options, their other names, and refusals that name what was typed."""
