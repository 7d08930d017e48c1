"""A request that no protocol spells, and the steps from it to its answer."""
