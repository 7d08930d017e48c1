"""The things that clients keep on the server: texts by name, files and batches."""
