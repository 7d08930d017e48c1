"""THE LOOP AND ITS FACES: the core that everything drives; sessions, scoring and Engine on it."""
