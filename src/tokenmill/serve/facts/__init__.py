"""The server's facts about itself: the model, its state, its document and its page."""
