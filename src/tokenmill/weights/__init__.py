"""FILES -> PARAMETERS: find a model, open whatever kind of file it is, and fill the decoder from it."""
