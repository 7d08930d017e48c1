"""Batches over files: rows in, rows with answers out, in order, with a journal that lets a broken run go on."""
