"""`tokenmill serve`: a model, replicas of it, or several models as a service."""
