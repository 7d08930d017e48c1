"""Between the event loop and the engine's thread: jobs, admission, pace, and the work on one request."""
