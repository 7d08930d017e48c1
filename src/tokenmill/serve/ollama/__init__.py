"""Ollama's API, as editors and chat programs use it."""
