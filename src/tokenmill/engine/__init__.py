"""The loop and its faces: the core that everything drives; sessions, scoring and Engine on it."""
