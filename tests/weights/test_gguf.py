"""GGUF files: hostile headers, what llama.cpp did to the tensors undone, every type, the config in other words."""

import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import gguf_files
from tokenmill import registry
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.model.families import in_gguf, read_config
from tokenmill.model.families.in_gguf import InGGUF
from tokenmill.model.families.llama import LLAMA
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.gguf.header import Header, TensorInfo, read_header
from tokenmill.weights.relaid import in_hugging_face_layout
from tokenmill.weights.write.gguf_metadata import check_read_back, metadata_of

Kind = gguf.GGMLQuantizationType
FAMILIES = list(gguf_files.TINY)
QUANTISED = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.MXFP4]
EXAMPLES = 3 * int(os.environ.get("TOKENMILL_EXAMPLES", "50"))
FLOATS = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def every_type(folder):
    """A file that is all header: every type of value, and two tensors."""
    path = folder / "every_type.gguf"
    writer = gguf.GGUFWriter(None, "llama")
    for name in "uint8 int8 uint16 int16 uint32 int32 float32 uint64 int64 float64".split():
        getattr(writer, f"add_{name}")(f"a.{name}", 7)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "grüße")
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.strings", ["x", "", "yz"])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.add_array("a.truths", [True, False])
    writer.add_tensor("t.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("q.weight", np.zeros((2, 34), np.uint8), raw_dtype=Kind.Q8_0)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def bare_llama(folder):
    """A whole model with a short header."""
    return gguf_files.write(folder / "bare.gguf", "llama", tokenizer=False)


def outcome(path: Path, data: bytes) -> Header | None:
    """The header of a file of these bytes, or None when it was refused as it should be."""
    path.write_bytes(data)
    try:
        return read_header(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return None


def test_header_holds_what_was_written(every_type):
    header = read_header(every_type)
    values = {key: value for key, value in header.metadata.items() if key.startswith("a.")}
    assert {value for key, value in values.items() if "int" in key or "float" in key} == {7}
    assert values["a.bool"] is True
    assert values["a.truths"] == [True, False]
    assert (values["a.string"], values["a.strings"]) == ("grüße", ["x", "", "yz"])
    assert (values["a.numbers"], values["a.nested"]) == ([1, 2, 3], [[1, 2], [3]])
    t, q = header.tensors["t.weight"], header.tensors["q.weight"]
    assert (t.shape, t.type, t.num_bytes, t.offset) == ((3, 4), Kind.F32, 48, 0)
    assert (q.shape, q.type, q.num_bytes, q.offset) == ((2, 32), Kind.Q8_0, 68, 64)
    assert header.data_offset % 32 == 0


def test_version_2_is_read_the_same(every_type, tmp_path):
    data = bytearray(every_type.read_bytes())
    data[4] = 2
    old, new = outcome(tmp_path / "old.gguf", data), read_header(every_type)
    assert (old.metadata, old.tensors) == (new.metadata, new.tensors)


def test_cut_at_every_byte(every_type, tmp_path):
    data, header = every_type.read_bytes(), read_header(every_type)
    needed = header.data_offset + max(info.offset + info.num_bytes for info in header.tensors.values())
    for size in range(needed):
        assert outcome(tmp_path / "cut.gguf", data[:size]) is None, size
    assert outcome(tmp_path / "cut.gguf", data[:needed]) == header


@pytest.mark.parametrize("lie", [0, 1 << 24, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_lies_anywhere_in_the_header(every_type, tmp_path, lie):
    """Every count, length and offset is eight bytes somewhere; so is much else."""
    data, header = every_type.read_bytes(), read_header(every_type)
    for at in range(4, header.data_offset - 8):
        outcome(tmp_path / "lie.gguf", data[:at] + struct.pack("<Q", lie) + data[at + 8 :])


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=6))
def test_flipped_bits_in_the_header(every_type, tmp_path, flips):
    data, size = bytearray(every_type.read_bytes()), read_header(every_type).data_offset
    for at, bits in flips:
        data[at % size] ^= bits
    outcome(tmp_path / "flipped.gguf", data)


def test_flipped_bits_in_a_model(bare_llama, tmp_path):
    """What opens can be read to the end, whatever the metadata claim."""
    data, size = bytearray(bare_llama.read_bytes()), read_header(bare_llama).data_offset
    generator = np.random.default_rng(40)
    path = tmp_path / "flipped.gguf"
    for _ in range(EXAMPLES):
        bent = data.copy()
        bent[generator.integers(size)] ^= 1 << generator.integers(8)
        path.write_bytes(bent)
        try:
            checkpoint = GGUFCheckpoint(path)
            for name, shape in checkpoint.shapes.items():
                assert checkpoint.read(name).shape == shape
        except CheckpointError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_gives_back_exactly_what_went_in(folder, name):
    _, tensors = gguf_files.tiny(name)
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / f"{name}.gguf", name))
    checkpoint = in_hugging_face_layout(checkpoint)
    assert {label: tuple(tensor.shape) for label, tensor in tensors.items()} == checkpoint.shapes
    assert checkpoint.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    for label, tensor in tensors.items():
        assert torch.equal(checkpoint.read(label), tensor), label


@pytest.mark.parametrize("name", FAMILIES)
def test_the_config_means_the_same_model(folder, name):
    config, _ = gguf_files.tiny(name)
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / f"{name}.gguf", name))
    assert read_config(checkpoint.config) == read_config(config)


@pytest.mark.parametrize("kind", [*QUANTISED, Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
def test_quantised_matrices_are_what_the_gguf_package_makes_of_them(folder, kind):
    _, tensors = gguf_files.tiny("qwen2")
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / f"{kind.name}.gguf", "qwen2", kind))
    checkpoint = in_hugging_face_layout(checkpoint)
    for label, tensor in tensors.items():
        read = checkpoint.read(label)
        stored = kind if tensor.dim() > 1 else Kind.F32
        expected = gguf.dequantize(gguf.quantize(tensor.numpy(), stored), stored)
        assert read.dtype == FLOATS.get(stored, torch.float32)
        assert torch.equal(read.float(), torch.from_numpy(expected)), label
    assert checkpoint.config["torch_dtype"] == ("float16" if kind == Kind.F16 else "bfloat16")


@pytest.mark.parametrize("name", FAMILIES)
def test_quantised_rows_are_turned_whole(folder, name):
    """Turning rows or heads round and dequantising commute: the same numbers as turning the dequantised matrix."""
    arch, _, _ = gguf_files.TINY[name]
    config, tensors = gguf_files.tiny(name)
    checkpoint = in_hugging_face_layout(GGUFCheckpoint(gguf_files.write(folder / f"{name}-q8.gguf", name, Kind.Q8_0)))
    back = {label: checkpoint.read(label).contiguous() for label in tensors}
    for label, turned in gguf_files.converted(arch, config, tensors).items():
        if turned.ndim > 1:
            expected = gguf.dequantize(gguf.quantize(turned, Kind.Q8_0), Kind.Q8_0)
            assert np.array_equal(gguf_files.converted(arch, config, back)[label], expected), label


@pytest.mark.parametrize("kind", gguf.GGML_QUANT_SIZES, ids=lambda kind: kind.name)
def test_every_type_is_read_or_named(folder, kind):
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(50).integers(0, 256, (64, 256 // block * block_bytes), np.uint8)
    stored = {"blk.0.ffn_down.weight": (data, kind)}
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / "kind.gguf", "qwen2", stored=stored))
    name = "blk.0.ffn_down.weight"
    try:
        with np.errstate(all="ignore"):  # random scales are infinite here and there
            expected = gguf.dequantize(data, kind)
    except NotImplementedError:
        with pytest.raises(CheckpointError, match=rf"'blk.0.ffn_down.weight' is of type {kind.name},"):
            checkpoint.read(name)
        return
    read = checkpoint.read(name)
    assert read.dtype == FLOATS.get(kind, torch.float32)
    assert np.array_equal(read.float().numpy(), expected, equal_nan=True)


STRETCHED = {"type": "yarn", "factor": 4.0, "original_context_length": 32}


@pytest.mark.parametrize(
    ("numbers", "used", "warning"),
    [
        # DeepSeek-R1-0528-Qwen3-8B, as llama.cpp's converter writes it.
        ({"yarn_attn_factor": 0.8782488562869419, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}, 1.138629436, ""),
        (
            {"yarn_attn_factor": 0.8782488562869419, "yarn_ext_factor": 0.5},
            1.138629436,
            "ext_factor = 0.5 has no effect",
        ),
        ({"yarn_attn_factor": 1.0}, 1.0, "'yarn_attn_factor': 1.0} is used as transformers does; llama.cpp ignores it"),
        ({"yarn_attn_factor": 1.138629436}, 1.138629436, ""),
        ({"yarn_beta_fast": 20.0}, 1.138629436, "'yarn_beta_fast': 20.0} is used as transformers does"),
        ({}, 1.138629436, ""),
    ],
)
def test_the_attention_factor_of_yarn_is_hugging_faces_or_deepseeks(folder, caplog, numbers, used, warning):
    metadata = {f"rope.scaling.{key}": value for key, value in (STRETCHED | numbers).items()}
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / "yarn.gguf", "qwen3", metadata=metadata))
    rope = read_config(checkpoint.config).rope
    assert dict(rope.scaling)["attention_factor"] == pytest.approx(used, rel=1e-6)
    assert warning in caplog.text and bool(caplog.messages) == bool(warning)


def test_the_tokenizer_travels_with_the_model(folder, bare_llama):
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / "llama.gguf", "llama"))
    assert checkpoint.tokenizer() is not None
    assert GGUFCheckpoint(bare_llama).tokenizer() is None


@pytest.mark.model
def test_the_real_model():
    from tokenmill.hub.names import locate

    checkpoint = GGUFCheckpoint(locate("smollm2-135m"))
    config = read_config(checkpoint.config)
    assert (config.family, config.num_layers, config.num_heads, config.num_kv_heads) == ("llama", 30, 9, 3)
    assert (config.vocab_size, config.tie_embeddings, config.rope.theta) == (49152, True, 100000.0)
    assert len(checkpoint.shapes) == 272
    for name, shape in checkpoint.shapes.items():
        tensor = checkpoint.read(name)
        assert tensor.shape == shape
        assert torch.isfinite(tensor).all(), name


@pytest.mark.parametrize("name", ["sha256-0f1e2d", "model.GGUF", "model.gguf.backup"])
def test_a_file_is_known_by_what_it_begins_with(tmp_path, name):
    """Ollama's blobs have names that say nothing of their kind."""
    path = gguf_files.write(tmp_path / "model.gguf", "llama").rename(tmp_path / name)
    assert open_checkpoint(path).config["model_type"] == "llama"


ORION = replace(LLAMA, gguf=InGGUF("orion"))


def test_a_family_that_is_read_as_llama_is_needs_its_own_file_alone(monkeypatch):
    monkeypatch.setitem(registry.FAMILIES, "orion", f"{__name__}:ORION")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    model = read_config({"model_type": "orion", "vocab_size": 10, "num_key_value_heads": 1, **sizes})
    metadata = metadata_of(model)
    assert metadata["general.architecture"] == "orion"
    names = {"token_embd.weight": (10, 8), "output.weight": (10, 8), "blk.0.attn_q.weight": (8, 8)}
    infos = [TensorInfo(name, shape, Kind.F32, 0, 0) for name, shape in names.items()]
    check_read_back(Path("orion.gguf"), model, metadata, infos)  # raises ConfigError where a field differs
    assert in_gguf("orion").names["blk.{i}.attn_q{p}"] == LLAMA.names["layers.{i}.self_attn.q_proj{p}"]


@pytest.mark.parametrize(("name", "value"), [("layer_kv_heads", (2, 1)), ("layer_head_dims", (4, 6))])
def test_layers_that_differ_are_refused_by_name(name, value):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    model = read_config({"model_type": "llama", "vocab_size": 10, "num_key_value_heads": 1, **sizes})
    shapes = {"token_embd.weight": (10, 8), "output.weight": (10, 8)}
    shapes |= {f"blk.{n}.attn_q.weight": (8, 8) for n in (0, 1)}
    infos = [TensorInfo(each, shape, Kind.F32, 0, 0) for each, shape in shapes.items()]
    check_read_back(Path("x.gguf"), model, metadata_of(model), infos)
    model = replace(model, **{name: value})
    with pytest.raises(ConfigError, match=re.escape(f"it has no key for {name} = {value}, read as ()")):
        check_read_back(Path("x.gguf"), model, metadata_of(model), infos)


def test_divisors_of_the_rope_are_few(tmp_path):
    """A file with a hole claims as many as it likes: they would be read as a list before anything is compared."""
    numbers = np.zeros((1 << 16) + 1, np.float32)
    path = gguf_files.write(tmp_path / "x.gguf", "llama", stored={"rope_freqs.weight": (numbers, gguf_files.F32)})
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight has 65537 numbers, more than a head can have"):
        open_checkpoint(path)
