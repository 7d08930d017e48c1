"""The table of inputs of layers stays in its file: rows are looked up in the mapping, with the bits of a table that is
read as a whole.
"""

import shutil
from contextlib import closing
from dataclasses import replace
from math import prod

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import TINY, build, prompt, save
from tokenmill import load
from tokenmill.errors import CheckpointError, PackedModelError
from tokenmill.hub.progress import Silent
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.pack import other_dtypes, packed_facts, save_packed_model
from tokenmill.model.per_layer import CODED, PerLayerInputs, numbers_in_file
from tokenmill.program.adapted import _with_same_weights
from tokenmill.program.native.weights import LAYOUT, Packed, Packing
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import foreseen_config, open_checkpoint
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.packed.reader import read_header
from tokenmill.weights.packed.writer import PackedWriter
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


STORED = [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
OF_TENSORS = [
    pytest.param(name, *pair, program, marks=() if number == 1 or place % 2 == which else pytest.mark.long)
    for number, name in enumerate(NAMES)
    for place, pair in enumerate(STORED)
    for which, program in enumerate(PROGRAMS)
]
"""The second, the quicker one, in every way; the first in every dtype and program."""


@pytest.mark.parametrize(("name", "stored", "dtype", "program"), OF_TENSORS)
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


OF_GGUF = [
    pytest.param(kind, dtype, program, marks=() if is_default else pytest.mark.long)
    for number, kind in enumerate(["F32", *CODED])
    for place, dtype in enumerate(["float32", "bfloat16"])
    for which, program in enumerate(PROGRAMS)
    for is_default in [kind in ("F32", "Q8_0", "Q4_K") or (place + which) % 2 == number % 2]
]
"""Two kinds of codes, of 32 and of 256 numbers, in every way; the others in each dtype and program."""


@pytest.mark.parametrize(("kind", "dtype", "program"), OF_GGUF)
def test_a_gguf_file(file, kind, dtype, program, tmp_path, monkeypatch):
    path = file if kind == "F32" else with_table(file, tmp_path / "y.gguf", gguf.GGMLQuantizationType[kind])
    if (kind, dtype) == ("F32", "bfloat16"):  # numbers of float32 are rounded once, when they are read
        assert not numbers_in_file(load(path, dtype=dtype, program=program).model_config, dtype)
        return
    check_bits(path, monkeypatch, program=program, dtype=dtype)


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_compiled_code_looks_rows_up(file, kind, tmp_path, monkeypatch):
    """Codes by an operation, which is no graph break."""
    path = file if kind == "F32" else with_table(file, tmp_path / "y.gguf", gguf.GGMLQuantizationType[kind])
    how = {"program": "compiled", "compile": "fullgraph", "compile_phases": "both", "compile_backend": "eager"}
    check_bits(path, monkeypatch, dtype="float32", **how)


def test_modules_with_adapters_share_the_mapping(models):
    path = save("gemma4_text-small", models)
    decoder = load(path, program="compiled", compile="no", dtype="float32").core.loaded.program.decoder
    tables = [each.per_layer.embedding.table.rows.data_ptr() for each in (decoder, _with_same_weights(decoder))]
    assert tables[0] == tables[1]


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
    described = open_checkpoint(packed).facts["weights"]
    assert described["table"] == ("" if kind == "F32" else kind)  # codes as they are
    assert GGUFCheckpoint(path).infos[TABLE].num_bytes in [size for _, size in described["dtypes"]["float32"]["kept"]]


def test_a_packed_model_for_every_dtype_has_the_codes_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Packing, "_has_few_floats", lambda _: True)  # the embedding of so small a model
    numbers = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 32}
    kind, config = TINY["gemma4_text-small"]
    more = numbers | {"global_head_dim": 32, "hidden_size_per_layer_input": 64}
    build(kind, config | more).save_pretrained(tmp_path / "model")
    quantize(open_checkpoint(tmp_path / "model"), tmp_path / "x.gguf", Silent(), "q8", export="gguf")
    path = with_table(tmp_path / "x.gguf", tmp_path / "y.gguf", gguf.GGMLQuantizationType.Q4_K)
    packed = tmp_path / "packed"
    checkpoint = open_checkpoint(path)
    resolved = resolve_checkpoint(checkpoint, EngineConfig(program="native", scheme="file"))
    with closing(PackedWriter(packed)) as writer:
        loaded = load_model(checkpoint, resolved, None, allocate=lambda *_: writer)
        writer.finish(packed_facts(loaded, checkpoint, other_dtypes(loaded, checkpoint)), loaded.tokenizer)
    weights = open_checkpoint(packed).facts["weights"]
    size = GGUFCheckpoint(path).infos[TABLE].num_bytes
    places = {begin for each in weights["dtypes"].values() for begin, own in each["kept"] if own == size}
    assert len(weights["dtypes"]) > 1 and len(places) == 1
    assert resolved.copy_bytes < read_header(packed)[0]["payload_bytes"] + size  # and is foreseen once
    for dtype in ("float32", "bfloat16"):
        settings = {"program": "native", "scheme": "file", "dtype": dtype, "max_length": 64}
        wanted, found = (load(each, **settings) for each in (path, packed))
        assert torch.equal(found.logits(IDS), wanted.logits(IDS))
        assert found.memory["weights_bytes"] == wanted.memory["weights_bytes"]


def test_a_file_that_is_cut_after_it_was_opened(file, tmp_path):
    """Before its table is mapped; the text would end the process later."""
    path = with_table(file, tmp_path / "y.gguf", gguf.GGMLQuantizationType.Q8_0)
    checkpoint = open_checkpoint(path)
    info = checkpoint.infos[TABLE]
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size - 64)
    cut = replace(info, offset=info.offset + path.stat().st_size)
    with pytest.raises(CheckpointError, match=f"ends inside tensor '{TABLE}'"):
        checkpoint.mapped_bytes(cut)


@pytest.mark.parametrize("table", ["Q9_9", 3, ["Q8_0"], None])
def test_a_description_with_unknown_codes_is_damaged(table):
    described = {"layout": LAYOUT, "placed": [], "dtypes": {"float32": {"kept": [], "floats": []}}, "table": table}
    with pytest.raises(PackedModelError, match="the packed model is damaged"):
        Packed(torch.empty(0, dtype=torch.uint8), described, "float32")
