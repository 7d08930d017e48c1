"""A rank that never comes, as one would that hangs while it loads."""

import time

time.sleep(600)
