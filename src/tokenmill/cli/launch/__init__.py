"""`tokenmill launch`: a coding agent that asks a server of tokenmill."""
