"""Settings and a checkpoint resolved once, then loaded, copied or packed."""
