"""What the layers of a model keep: the window of all that keep rows, and the bytes of rows and states."""

import pytest

from tokenmill.cache.spec import CacheSpec, RowsSpec, StateSpec

STATE = StateSpec(((2, 8, 4), (6,)), ("float32", "bfloat16"))


@pytest.mark.parametrize(
    ("windows", "window"),
    [([None], None), ([7], 7), ([7, 3], 7), ([7, None], None), ([None, 7], None), ([], None)],
)
@pytest.mark.parametrize("states", [(), (STATE,)], ids=["rows", "states too"])
def test_the_window_of_all_layers_that_keep_rows_is_the_largest(windows, window, states):
    layers = (*states, *(RowsSpec(2, 8, each) for each in windows))
    assert CacheSpec(layers, "float32", "dense", 4, 3).window == window


def test_bytes_of_rows_and_states():
    spec = CacheSpec((RowsSpec(2, 8), STATE, RowsSpec(1, 4), STATE), "float32", "dense", 4, 3, num_states=5)
    assert (spec.rows, spec.states) == ((RowsSpec(2, 8), RowsSpec(1, 4)), (STATE, STATE))
    assert (spec.bytes_per_token, spec.bytes_per_state) == (2 * 4 * (2 * 8 + 4), 2 * (4 * 64 + 2 * 6))
    assert spec.num_bytes == 160 * 12 + 536 * 5
