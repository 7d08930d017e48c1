"""What JSON schemas say about values, exactly: expressions, numbers, formats, and grammars made of them."""
