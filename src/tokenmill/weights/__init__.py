"""Models opened, whatever kind of file they are, and decoders filled from them."""
