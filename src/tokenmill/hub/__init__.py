"""Names of models and their meaning; downloads with a cache, locks and checks."""
