"""COMPARING RUNS: points, series, the ladder, other engines by turns, load on a server, pictures."""
