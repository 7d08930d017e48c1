"""The places where models lie on this machine: our cache folder, the hub's, Ollama's, and folders of models."""
