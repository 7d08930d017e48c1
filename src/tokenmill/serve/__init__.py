"""The OpenAI server: one engine, many clients."""
