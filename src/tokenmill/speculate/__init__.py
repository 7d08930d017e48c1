"""Speculation: proposers guess the next tokens of a sequence, one pass checks them all."""
