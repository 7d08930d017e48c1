"""Limits that follow the free disk where none is given."""

import pytest

from tokenmill.cache.prefix_store import PREFIX_LIMIT
from tokenmill.loader.copies import COPIES_LIMIT
from tokenmill.memory.disk_limit import LEAST_MB, MB, free_disk, limit_of

GB = 1000 * MB


@pytest.mark.parametrize(
    ("given_mb", "limit", "free", "wanted"),
    [
        (7, COPIES_LIMIT, 0, 7 * MB),
        (None, COPIES_LIMIT, 500 * GB, 20 * GB),
        (None, COPIES_LIMIT, 20 * GB, 4 * GB),
        (None, PREFIX_LIMIT, 500 * GB, 4096 * MB),
        (None, PREFIX_LIMIT, 20 * GB, GB),
        (None, PREFIX_LIMIT, 0, LEAST_MB * MB),
    ],
)
def test_a_limit_is_the_one_that_is_given_or_a_share_of_what_is_free(given_mb, limit, free, wanted):
    assert limit_of(given_mb, limit, free) == wanted


def test_a_folder_that_is_not_made_yet_lies_on_a_disk(tmp_path):
    assert free_disk(tmp_path / "not" / "made") > 0
