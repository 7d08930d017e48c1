"""GGUF files: hostile headers, what llama.cpp did to the tensors undone, every type, the config in other words."""

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
from tokenmill.model.families import InGGUF, read_config
from tokenmill.model.families.llama import LLAMA
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.gguf.header import Header, TensorInfo, read_header
from tokenmill.weights.gguf.names import hf_bases
from tokenmill.weights.write.gguf_metadata import check_read_back, metadata_of

Kind = gguf.GGMLQuantizationType
FAMILIES = list(gguf_files.TINY)
QUANTISED = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.MXFP4]
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
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
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
    for _ in range(300):
        bent = data.copy()
        bent[generator.integers(size)] ^= 1 << generator.integers(8)
        path.write_bytes(bent)
        try:
            checkpoint = GGUFCheckpoint(path)
            for name, shape in checkpoint.shapes.items():
                assert checkpoint.read(name).shape == shape
        except CheckpointError as error:
            assert "\n" not in str(error)


def pair(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def record(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    label = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
    return label + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def gguf_bytes(pairs: list[bytes], records: list[bytes], num_data: int = 4096, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(records), len(pairs)) + b"".join(pairs) + b"".join(records)
    return head + bytes(-len(head) % 32 + num_data)


def array(inner: int, count: int) -> bytes:
    return struct.pack("<IQ", inner, count)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter than a header"),
        (b"PK" + bytes(40), "no GGUF file: it begins with b'PK"),
        (b"GGUF" + bytes(40), "version 0"),
        (gguf_bytes([], [], version=1), "version 1: only 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf_bytes([pair("a", 9, array(4, 1 << 63))], []), "claims 9223372036854775808 entries"),
        (gguf_bytes([pair("a", 9, array(9, 1 << 20))], []), "arrays in the value of 'a'"),
        (gguf_bytes([pair("a", 9, array(9, 1) * 2000)], []), "nests arrays more than 4 deep"),
        (gguf_bytes([pair("a", 13, bytes(8))], []), "unknown type 13"),
        (gguf_bytes([pair("a", 7, b"\2")], []), "truth value"),
        (gguf_bytes([pair("a", 8, struct.pack("<Q", 2) + b"\xff\xff")], []), "not UTF-8"),
        (gguf_bytes([pair("a", 0, b"\1")] * 2, []), "'a' is there twice"),
        (gguf_bytes([pair("k" * 300, 0, b"\1")], []), "a text of 300 bytes, at most 255"),
        (gguf_bytes([pair("a\nb", 0, b"\1")], []), "'a\\nb', which holds control characters"),
        (gguf_bytes([pair("general.alignment", 4, struct.pack("<I", 24))], []), "24, a power of two"),
        (gguf_bytes([pair("general.alignment", 8, struct.pack("<Q", 0))], []), "a power of two"),
        (gguf_bytes([], [record("t", [8]), record("t", [8], offset=32)]), "'t' is there twice"),
        (gguf_bytes([], [record("t", [])]), "claims 0 dimensions"),
        (gguf_bytes([], [record("t", [1] * 5)]), "claims 5 dimensions"),
        (gguf_bytes([], [record("t", [8, 0])]), "is [0, 8]"),
        (gguf_bytes([], [record("t", [1 << 40] * 4)]), "needs bytes"),
        (gguf_bytes([], [record("t", [8], kind=31)]), "type 31, which GGUF does not define"),
        (gguf_bytes([], [record("t", [33], kind=8)]), "Q8_0 needs rows of 32"),
        (gguf_bytes([], [record("t", [8], offset=4)]), "not aligned to 32"),
        (gguf_bytes([], [record("t", [64]), record("u", [8], offset=32)]), "'u' at byte"),
        (gguf_bytes([], [record("t", [8], offset=1 << 62)]), "needs bytes"),
    ],
)
def test_crafted_headers_are_refused(tmp_path, data, message):
    path = tmp_path / "crafted.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("inner", range(15))
def test_the_file_of_49_bytes(tmp_path, inner):
    """One array that claims more entries than could ever be: the gguf package's reader walks them all."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("a", 9, array(inner, (1 << 64) - 1))
    assert len(data) == 49
    assert outcome(tmp_path / "long.gguf", data) is None


def test_what_is_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "absent.gguf"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_header(path)


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_gives_back_exactly_what_went_in(folder, name):
    _, tensors = gguf_files.tiny(name)
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / f"{name}.gguf", name))
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
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / f"{name}-q8.gguf", name, Kind.Q8_0))
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
    name = "model.layers.0.mlp.down_proj.weight"
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


def test_rope_factors_become_part_of_the_config(folder):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    stored = {"rope_freqs.weight": (factors, Kind.F32)}
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / "factors.gguf", "llama", stored=stored))
    assert checkpoint.config["rope_scaling"] == {"rope_type": "factors", "factors": factors.tolist()}
    assert not any("rope" in name for name in checkpoint.shapes)
    assert dict(read_config(checkpoint.config).rope.scaling)["factors"] == tuple(factors.tolist())


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}, {"rope_type": "linear", "factor": 2.5}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_beta_fast": 30.0,
                "rope.scaling.finetuned": True,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 30.0},
        ),
    ],
)
def test_rope_scaling_in_other_words(folder, metadata, scaling):
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / "scaling.gguf", "llama", metadata=metadata))
    assert checkpoint.config.get("rope_scaling") == scaling
    assert read_config(checkpoint.config).rope.kind == (scaling or {"rope_type": "default"})["rope_type"]


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


def test_ends_of_turn_are_ends_too(folder):
    metadata = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 0}
    checkpoint = GGUFCheckpoint(gguf_files.write(folder / "ends.gguf", "llama", metadata=metadata))
    assert checkpoint.config["eos_token_id"] == [0, 5]


def test_a_value_for_each_layer_is_one_when_all_agree(folder):
    path = gguf_files.write(folder / "layers.gguf", "llama", metadata={"attention.head_count_kv": [2, 2]})
    assert GGUFCheckpoint(path).config["num_key_value_heads"] == 2


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("llama", {"general.architecture": "mamba"}, "'mamba' is not implemented: only 'llama', 'qwen2', 'qwen3'"),
        ("llama", {"general.architecture": ["llama"]}, "['llama'] is not implemented"),
        ("llama", {"vocab_size": "\n" * 5000}, "llama.vocab_size is '"),
        ("llama", {"general.type": "adapter"}, "general.type = 'adapter' is not implemented"),
        ("llama", {"split.count": 3}, "is one of 3 parts of a model: join them first"),
        ("llama", {"block_count": None}, "no 'llama.block_count', which is required"),
        ("llama", {"block_count": 5}, "block_count is 5, but there are tensors of 2 layers"),
        ("llama", {"embedding_length": 0}, "llama.embedding_length = 0 is not allowed"),
        ("llama", {"attention.head_count": "four"}, "'four' is not allowed"),
        (
            "llama",
            {"attention.head_count_kv": [2, 1]},
            "llama.attention.head_count_kv = [2, 1] is not allowed: it differs by layer",
        ),
        ("llama", {"attention.layer_norm_rms_epsilon": -1.0}, "-1.0 is not allowed"),
        ("llama", {"attention.value_length": 8}, "attention.value_length = 8 is not implemented: only 16"),
        ("llama", {"rope.dimension_count": 8}, "rope.dimension_count = 8 is not implemented"),
        ("llama", {"rope.scaling.type": "longrope"}, "'longrope' is not implemented: only 'linear', 'none', 'yarn'"),
        ("llama", {"rope.scaling.factor": -4.0}, "rope.scaling.factor = -4.0 is not allowed"),
        ("llama", {"logit_scale": 0.5}, "keys that tokenmill does not know: llama.logit_scale = 0.5"),
        ("llama", {"vocab_size": 283}, "llama.vocab_size is 283, but token_embd.weight has 281 rows"),
        ("llama", {"tokenizer.ggml.tokens": ["a", "b"]}, "tokenizer.ggml.tokens is 2, but token_embd.weight has 281"),
        ("qwen2", {"attention.sliding_window": 7}, "does not know: qwen2.attention.sliding_window = 7"),
        ("mixtral", {"expert_count": 4}, "needs 4 experts"),
        ("mixtral", {"expert_weights_norm": "no"}, "expert_weights_norm = 'no' is not implemented"),
        ("gptneox", {"rope.dimension_count": None}, "no 'gptneox.rope.dimension_count'"),
        ("starcoder", {"attention.head_count_kv": 4}, "head_count_kv = 4 is not implemented: only 1"),
    ],
)
def test_metadata_that_cannot_be_followed(tmp_path, name, metadata, message):
    path = gguf_files.write(tmp_path / "model.gguf", name, metadata=metadata)
    with pytest.raises(CheckpointError) as error:
        GGUFCheckpoint(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"blk.0.attn_sinks.weight": (np.ones(4, np.float32), Kind.F32)}, "1 unexpected: blk.0.attn_sinks.weight"),
        ({"token_embd.weight": None}, "1 missing: token_embd.weight"),
        ({"rope_freqs.weight": (np.ones(5, np.float32), Kind.F32)}, "rope_freqs.weight has 5"),
        ({"rope_freqs.weight": (np.zeros(8, np.float32), Kind.F32)}, "positive numbers"),
    ],
)
def test_tensors_that_do_not_belong(tmp_path, stored, message):
    path = gguf_files.write(tmp_path / "model.gguf", "llama", stored=stored)
    with pytest.raises(CheckpointError) as error:
        GGUFCheckpoint(path)
    assert message in str(error.value)


def test_a_file_that_shrinks_while_open(tmp_path):
    path = gguf_files.write(tmp_path / "model.gguf", "llama")
    checkpoint = GGUFCheckpoint(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        for name in checkpoint.shapes:
            checkpoint.read(name)


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
    assert hf_bases("orion")["blk.{i}.attn_q"] == "model.layers.{i}.self_attn.q_proj"


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
