"""The book in docs/: what writes the pages that are made of the source, and the checks of all pages."""
