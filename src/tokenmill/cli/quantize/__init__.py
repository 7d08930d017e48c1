"""`tokenmill quantize`: a model with matrices in 4 or 8 bits."""
