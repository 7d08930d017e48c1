"""What the server tells of itself: the model, its state, its document and its page."""
