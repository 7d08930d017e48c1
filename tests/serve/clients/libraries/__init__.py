"""Programs of client libraries, which test_libraries.py runs in an environment of their own, with URL in theirs."""
