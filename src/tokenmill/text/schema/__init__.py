"""The values that JSON schemas admit, exactly: expressions, numbers, formats, and grammars made of them."""
