"""Several processes that compute each step of one model together."""
