"""One request as no protocol spells it, and what becomes of it."""
