"""The table of inputs of layers stays in its file: rows are looked up in the mapping, with the bits of a table that is
read as a whole.
"""

import shutil
from dataclasses import replace
from math import prod

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import TINY, build, prompt, save
from tokenmill import load
from tokenmill.hub.progress import Silent
from tokenmill.loader.pack import save_packed_model
from tokenmill.model.per_layer import CODED, PerLayerInputs, numbers_in_file
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import foreseen_config, open_checkpoint
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.write.gguf_metadata import write_header
from tokenmill.weights.write.quantize import quantize

TABLE = "per_layer_token_embd.weight"
NAMES = ["gemma3n_text-departures", "gemma4_text-small"]
PROGRAMS = ["eager", "native"]
IDS = [*prompt(40), 0, 210]  # 210 lies behind the end of the first model's table


def read_whole(monkeypatch):
    monkeypatch.setattr(PerLayerInputs, "stays_in_file", lambda *_: False)


def logits(path, **settings):
    engine = load(path, scheme="dense", threads=1, max_length=64, **settings)
    return engine.logits(IDS), engine.memory["weights_bytes"], numbers_in_file(engine.model_config, engine.config.dtype)


def check_bits(path, monkeypatch, **settings):
    found, num_bytes, numbers = logits(path, **settings)
    assert numbers
    with monkeypatch.context() as patched:
        read_whole(patched)
        wanted, whole_bytes, none = logits(path, **settings)
    assert torch.equal(found, wanted) and none == 0
    assert whole_bytes - num_bytes == numbers * torch.tensor([], dtype=getattr(torch, settings["dtype"])).itemsize


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("stored", "dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_safetensors_file(name, stored, dtype, program, models, tmp_path, monkeypatch):
    path = shutil.copytree(save(name, models), tmp_path / name)
    tensors = {
        each: tensor.to(getattr(torch, stored)) for each, tensor in load_file(path / "model.safetensors").items()
    }
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert foreseen_config(path) == open_checkpoint(path).config
    check_bits(path, monkeypatch, program=program, dtype=dtype)


def test_numbers_that_a_dtype_may_not_hold_are_compared_first(models):
    """A table of float32 in a model of float16 is read as a whole."""
    engine = load(save("gemma4_text-small", models), dtype="float16", program="native")
    assert not numbers_in_file(engine.model_config, "float16")


def with_table(file, out, kind):
    """Write the file again with random codes of that type for its table."""
    checkpoint, rng = GGUFCheckpoint(file), np.random.default_rng(3)
    infos, data, offset = [], [], 0
    for info in checkpoint.infos.values():
        raw = checkpoint.raw(info)
        if info.name == TABLE:
            count, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (prod(info.shape) // count, size), np.uint8)
            halves = {"Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,)}.get(kind.name, (0, 2))
            for at in halves:
                numbers = rng.uniform(-0.01, 0.01, len(blocks)).astype(np.float16)
                blocks[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
            raw = blocks.reshape(info.shape[0], -1)
            info = replace(info, type=kind)  # noqa: PLW2901
        infos.append(replace(info, offset=offset, num_bytes=raw.nbytes))
        data.append(raw.tobytes() + bytes(-raw.nbytes % gguf.GGUF_DEFAULT_ALIGNMENT))
        offset += len(data[-1])
    metadata = {key: value for key, value in checkpoint.metadata.items() if not key.startswith("tokenizer")}
    write_header(out, metadata | {"tokenizer.ggml.model": "no_vocab"}, infos)
    with out.open("ab") as opened:
        opened.write(bytes(-opened.tell() % gguf.GGUF_DEFAULT_ALIGNMENT) + b"".join(data))
    return out


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A GGUF file whose table has rows of 256 numbers."""
    folder = tmp_path_factory.mktemp("coded")
    kind, numbers = TINY["gemma4_text-small"]
    build(kind, numbers | {"hidden_size_per_layer_input": 64}).save_pretrained(folder / "model")
    quantize(open_checkpoint(folder / "model"), folder / "x.gguf", Silent(), "none", head="none", export="gguf")
    return folder / "x.gguf"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["F32", *CODED])
def test_a_gguf_file(file, kind, dtype, program, tmp_path, monkeypatch):
    path = file if kind == "F32" else with_table(file, tmp_path / "y.gguf", gguf.GGMLQuantizationType[kind])
    if (kind, dtype) == ("F32", "bfloat16"):  # numbers of float32 are rounded once, when they are read
        assert not numbers_in_file(load(path, dtype=dtype, program=program).model_config, dtype)
        return
    check_bits(path, monkeypatch, program=program, dtype=dtype)


def test_codes_that_are_not_decoded_by_rows_are_read(file, tmp_path):
    path = with_table(file, tmp_path / "y.gguf", gguf.GGMLQuantizationType.Q3_K)
    engine = load(path, dtype="float32", program="native")
    assert not numbers_in_file(engine.model_config, "float32")


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_a_packed_model(file, kind, tmp_path):
    path = file if kind == "F32" else with_table(file, tmp_path / "y.gguf", gguf.GGMLQuantizationType[kind])
    packed = tmp_path / "packed"
    config = EngineConfig(program="native", dtype="float32", scheme="dense")
    save_packed_model(open_checkpoint(path), config, packed, lambda *_: None)
    settings = {"program": "native", "dtype": "float32"}
    found, num_bytes, numbers = logits(packed, **settings)
    wanted, of_file, _ = logits(path, **settings)
    assert torch.equal(found, wanted) and numbers and num_bytes == of_file
