"""Directories in Meta's own layout, which Mistral shares: params.json and consolidated.*, without a config.json."""
