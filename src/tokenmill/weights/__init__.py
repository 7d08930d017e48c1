"""Models found, whatever kind of file they are, opened, and decoders filled from them."""
