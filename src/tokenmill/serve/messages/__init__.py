"""Anthropic's messages, as Claude Code uses them."""
