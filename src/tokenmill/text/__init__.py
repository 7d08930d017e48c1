"""Tokenizers, chat templates, and tokens turned back into text as they come."""
