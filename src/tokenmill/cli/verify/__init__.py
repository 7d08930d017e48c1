"""`tokenmill verify`: receipts of texts, checked."""
