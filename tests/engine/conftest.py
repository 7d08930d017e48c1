"""What the tests of engines share."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Freeze what is there before a file's tests: each full collection, of which check_empty makes one, then looks at
    what they made alone, and takes milliseconds. What was left by the file before is collected first.
    """
    gc.collect()
    gc.freeze()
