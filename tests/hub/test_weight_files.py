"""Which files of a directory are its weights: the order of transformers' `_get_resolved_checkpoint_files`."""

import pytest

from tokenmill.hub.weight_files import WeightFiles, find_weights, missing_shards, shards_of

SAFE, BIN = "model.safetensors", "pytorch_model.bin"
SAFE_INDEX, BIN_INDEX = f"{SAFE}.index.json", f"{BIN}.index.json"


@pytest.mark.parametrize(
    ("present", "files", "index"),
    [
        ([BIN, SAFE_INDEX, SAFE], [SAFE], None),
        ([BIN, BIN_INDEX, SAFE_INDEX], [], SAFE_INDEX),
        ([BIN_INDEX, BIN], [BIN], None),
        ([BIN_INDEX, "pytorch_model-00001-of-00001.bin"], ["pytorch_model-00001-of-00001.bin"], BIN_INDEX),
        (
            [SAFE_INDEX, "model-2.safetensors", "model-1.safetensors", "other.safetensors", "model-1.bin", BIN],
            ["model-1.safetensors", "model-2.safetensors"],
            SAFE_INDEX,
        ),
        # What other programs write, each kind only where there is none of the kinds before it.
        (["b.safetensors", "model-4bit.safetensors"], ["model-4bit.safetensors"], None),
        (["pytorch_model-1.bin", "b.safetensors", "a.safetensors"], ["a.safetensors", "b.safetensors"], None),
        (["pytorch_model_b.bin", "training_args.bin"], ["pytorch_model_b.bin"], None),
        (["adapter_model.safetensors", "consolidated.safetensors", "training_args.bin"], [], None),
        ([], [], None),
    ],
)
def test_the_order_of_the_kinds(present, files, index):
    assert find_weights(present) == WeightFiles(tuple(files), index)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (["x-00001-of-00001.bin"], []),
        (["x-00002-of-00002.bin", "x-00001-of-00002.bin"], []),
        (["x-00001-of-00002.bin"], ["x-00002-of-00002.bin"]),
        (["x-3-of-3.bin", "y-01-of-02.bin"], ["x-1-of-3.bin", "x-2-of-3.bin", "y-02-of-02.bin"]),
        (["model.safetensors", "x-00002-of.bin", "x-1-of-2"], []),
    ],
)
def test_the_shards_that_names_promise(files, missing):
    assert missing_shards(files) == missing


def test_a_name_that_claims_any_number_of_shards_is_followed_to_ten_thousand():
    missing = missing_shards(["x-1-of-999999999999.bin"])
    assert len(missing) == 9_999
    assert "x-10000-of-999999999999.bin" in missing and "x-10001-of-999999999999.bin" not in missing


def test_the_shards_of_a_name_are_all_of_its_kind_in_order():
    assert shards_of("q4/x-00002-of-00003.gguf") == [f"q4/x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert shards_of("x.gguf") == ["x.gguf"] and shards_of("x-2-of.gguf") == ["x-2-of.gguf"]
