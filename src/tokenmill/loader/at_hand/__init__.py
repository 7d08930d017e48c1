"""What is known of the models that lie on this machine, from their headers; what was kept for them. No torch."""
