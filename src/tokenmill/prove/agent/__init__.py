"""Recorded requests of an agent, sent again: how much of each was computed that had been computed before."""
