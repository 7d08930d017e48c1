"""Batches over files: rows in, rows with answers out, in order, with a journal by which a broken run goes on."""
