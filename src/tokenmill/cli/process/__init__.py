"""The command as a process: its start, its streams, Ctrl-C, what it shows on stderr."""
