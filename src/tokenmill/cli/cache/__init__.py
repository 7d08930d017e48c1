"""`tokenmill cache`: what lies in the cache folder."""
