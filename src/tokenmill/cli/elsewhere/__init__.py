"""The names that other programs have for what tokenmill does: for the hints of the command line, and for the book."""
