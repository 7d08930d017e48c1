"""OpenAI's responses, as Codex uses them."""
