"""The server of one engine: its options, its application and its life."""
