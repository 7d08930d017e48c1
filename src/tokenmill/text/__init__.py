"""PROMPT -> TOKENS -> TEXT: tokenizers, chat templates, and tokens turned back into text as they come."""
