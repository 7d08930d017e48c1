"""NAMES -> FILES: what a model's name means, and downloads with a cache, locks and checks."""
