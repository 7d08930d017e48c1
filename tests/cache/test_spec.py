"""What the layers of a model keep: the window of all of them, and state, which is refused by name."""

from dataclasses import replace

import pytest

from tests.tiny_models import save
from tokenmill import load
from tokenmill.cache.spec import CacheSpec, RowsSpec, StateSpec, rows_of
from tokenmill.errors import CheckpointError
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.model.families.llama import LLAMA
from tokenmill.registry import FAMILIES, Entry
from tokenmill.weights.checkpoint import read_config_json

STATE = StateSpec(((2, 8, 4), (6,)), ("float32", "bfloat16"))
RECURRENT = replace(LLAMA, read=lambda reader: {**LLAMA.read(reader), "layer_states": (None, STATE)}, gguf=None)
WHY = (
    r"layers that keep state are not implemented, only K and V rows: layer 1 keeps float32 \[2, 8, 4\], bfloat16 \[6\]"
)


@pytest.mark.parametrize(
    ("windows", "window"),
    [([None], None), ([7], 7), ([7, 3], 7), ([7, None], None), ([None, 7], None)],
)
def test_the_window_of_all_layers_is_the_largest(windows, window):
    layers = tuple(RowsSpec(2, 8, each) for each in windows)
    assert CacheSpec(layers, "float32", "dense", 4, 3).window == window


def test_layers_that_keep_rows_are_all_that_is_asked_for():
    layers = [RowsSpec(2, 8), RowsSpec(1, 4, 3)]
    assert rows_of(layers) == tuple(layers)
    with pytest.raises(CheckpointError, match=f"^{WHY}$"):
        rows_of([RowsSpec(2, 8), STATE])
    with pytest.raises(CheckpointError, match=r"layer 0 keeps float32 \[2\]; layer 1 keeps float32 \[3\]$"):
        rows_of([StateSpec(((2,),), ("float32",)), StateSpec(((3,),), ("float32",))])


def test_a_model_with_a_layer_that_keeps_state_is_described_and_refused(tmp_path, monkeypatch):
    path = save("llama", tmp_path)
    monkeypatch.setitem(FAMILIES, "llama", Entry("of this test", f"{__name__}:RECURRENT"))
    model = read_config(read_config_json(path))
    assert [layer.keeps for layer in describe(model).layers] == [RowsSpec(2, 8), STATE]
    with pytest.raises(CheckpointError, match=WHY):
        load(path)
