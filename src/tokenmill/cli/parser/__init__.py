"""What every verb is to the parser: options, their other names, and refusals that name what was typed."""
