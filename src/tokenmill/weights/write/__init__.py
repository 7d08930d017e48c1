"""PARAMETERS -> FILES: checkpoints written anew, converted or quantised."""
