"""Coding agents of other people that drive the server through a task. `make test-agents` installs and runs them."""
