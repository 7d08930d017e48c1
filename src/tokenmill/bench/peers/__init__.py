"""Other engines: which there are, how each is installed and run in its own process, and the contest between them."""
