"""GGUF files as checkpoints: what is said of their types, where each tensor lies, and what does not belong."""

from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests import gguf_files
from tokenmill.errors import CheckpointError
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.relaid import in_hugging_face_layout

Kind = gguf.GGMLQuantizationType
DOWN = "blk.0.ffn_down.weight"
SHAPE = (64, 256)  # of ffn_down


@pytest.fixture
def opened(tmp_path):
    def write(name: str = "llama", kind=Kind.F32, **how) -> GGUFCheckpoint:
        return GGUFCheckpoint(gguf_files.write(tmp_path / "x.gguf", name, kind, **how))

    return write


def of_kind(kind, shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, Kind]:
    """Random bytes of a type, whose values may be anything."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(4)
    return generator.integers(0, 60, (*shape[:-1], shape[-1] // block * size), np.uint8), kind


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def test_a_file_in_floating_point_has_no_codes(opened):
    for kind, dtype in ((Kind.F32, "float32"), (Kind.F16, "float16"), (Kind.BF16, "bfloat16")):
        file = opened(kind=kind)
        assert file.dtype_of(DOWN) == dtype
        assert file.dtype_of("output_norm.weight") == "float32"
        assert file.rounded == "" and not {"stored_as_codes", "embedding_as_codes"} & file.config.keys()
        assert file.read_codes(DOWN) is None


@pytest.mark.parametrize(
    ("kind", "bits", "compact"),
    [
        (Kind.Q4_0, 4.5, 4.5),
        (Kind.Q4_1, 5.0, 5.0),
        (Kind.Q5_0, 6.0, 9.0),
        (Kind.Q5_1, 6.0, 9.0),
        (Kind.Q8_0, 8.5, 8.5),
    ],
    ids=str,
)
def test_bits_of_codes_as_the_programs_pack_them(opened, kind, bits, compact):
    file = opened(kind=kind)
    assert file.config["stored_as_compact_codes"] == compact
    assert file.config["stored_as_codes"] == file.config["embedding_as_codes"] == bits
    assert file.dtype_of("token_embd.weight") == "float32"
    assert file.rounded == ""


@pytest.mark.parametrize(
    ("kind", "bits"), [(Kind.Q4_K, 4.625), (Kind.Q6_K, 6.625), (Kind.Q2_K, 8.5), (Kind.F16, 16.0), (Kind.F32, 32.0)]
)
def test_bits_are_a_mean_over_all_numbers_of_matrices(opened, kind, bits):
    """Of both layers: four projections of 64 x 64 or 32 x 64, three of 64 x 256; and the head of 281 x 64."""
    all_numbers = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 256) + 281 * 64
    stored = {DOWN: of_kind(kind) if kind != Kind.F32 else (numbers(*SHAPE), kind)}
    config = opened(kind=Kind.Q4_0, stored=stored).config
    mean = (4.5 * (all_numbers - 64 * 256) + bits * 64 * 256) / all_numbers
    assert config["stored_as_codes"] == pytest.approx(mean, rel=1e-12)


def test_the_embedding_counts_where_it_is_the_head(opened):
    in_floats = {"token_embd.weight": (numbers(281, 64), Kind.F32)}
    untied = opened(kind=Kind.Q4_0, stored=in_floats).config
    assert untied["stored_as_codes"] == 4.5 and "embedding_as_codes" not in untied
    tied = opened("llama-tied", kind=Kind.Q4_0, stored=in_floats).config
    layers, table = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 256), 281 * 64
    assert tied["stored_as_codes"] == pytest.approx((4.5 * layers + 32 * table) / (layers + table), rel=1e-12)
    positions = {"position_embd.weight": (numbers(128, 64), Kind.F32)}
    assert opened("gpt2", kind=Kind.Q4_0, stored=positions).config["stored_as_codes"] == 4.5


def test_codes_that_are_not_kept_are_counted_by_kind(opened):
    stored = {
        DOWN: of_kind(Kind.Q2_K),
        "blk.1.ffn_down.weight": of_kind(Kind.Q2_K),
        "token_embd.weight": of_kind(Kind.NVFP4, (281, 64)),
        "blk.1.ffn_up.weight": of_kind(Kind.Q8_0, (256, 64)),
    }
    file = opened(stored=stored)
    assert file.rounded == (
        "codes of other kinds are rounded to 8 bits: 1 NVFP4, 2 Q2_K; --scheme dense reads the file's values instead"
    )
    assert "embedding_as_codes" not in file.config
    assert "stored_as_codes" in file.config


def test_codes_are_those_of_the_file_or_rounded_to_eight_bits(opened):
    raw, kind = of_kind(Kind.Q2_K)
    file = opened(kind=Kind.Q8_0, stored={DOWN: (raw, kind)})
    found = file.read_codes(DOWN)
    wanted = round_to_nearest(torch.from_numpy(gguf.dequantize(raw, kind)), 8, quick=True)
    assert torch.equal(found.codes, wanted.codes) and torch.equal(found.scales, wanted.scales) and found.bits == 8
    kept = file.read_codes("blk.1.ffn_down.weight")
    assert torch.equal(kept.values(), file.read("blk.1.ffn_down.weight"))


def test_a_vector_of_codes_is_read_as_numbers(opened):
    raw, kind = of_kind(Kind.Q8_0, (64,))
    file = opened(stored={"output_norm.weight": (raw, kind)})
    assert file.read_codes("output_norm.weight") is None
    assert torch.equal(file.read("output_norm.weight"), torch.from_numpy(gguf.dequantize(raw, kind)))


def test_quantised_tensors_are_read_in_the_dtype_that_is_asked_for(opened):
    name = DOWN
    file = opened(kind=Kind.Q4_0)
    wanted = file.read(name)
    assert wanted.dtype == torch.float32
    assert torch.equal(file.read(name, torch.bfloat16), wanted.bfloat16())
    assert opened(kind=Kind.F16).read(name, torch.bfloat16).dtype == torch.float16, "as the file has it"


def test_long_rows_are_read_some_at_a_time(opened, monkeypatch):
    from tokenmill.weights.gguf import tensors

    name = DOWN
    file = opened(kind=Kind.Q8_0)
    wanted = file.read(name)
    for size in (1, 256, 700):
        monkeypatch.setattr(tensors, "CHUNK", size)
        assert torch.equal(file.read(name), wanted)


def test_each_expert_lies_in_the_stack(opened):
    _, plain = gguf_files.tiny("mixtral")
    file = opened("mixtral", kind=Kind.Q8_0)
    for expert in range(3):
        name = f"model.layers.1.block_sparse_moe.experts.{expert}.w2.weight"
        info = file.infos[f"blk.1.ffn_down_exps.weight[{expert}]"]
        assert (info.shape, info.num_bytes) == ((64, 256), 64 * 256 // 32 * 34)
        data = gguf.quantize(plain[name].numpy(), Kind.Q8_0)
        assert np.array_equal(file.raw(info).reshape(-1), data.reshape(-1))


@pytest.mark.parametrize("shape", [(2, 64, 256), (4, 64, 256), (64, 256)])
def test_a_stack_of_other_experts_is_misshapen(opened, shape):
    with pytest.raises(CheckpointError) as raised:
        opened("mixtral", stored={"blk.1.ffn_down_exps.weight": (numbers(*shape), Kind.F32)})
    told = f"blk.1.ffn_down_exps.weight {list(shape)}, needs 3 experts"
    assert f"does not fit its metadata; 1 misshapen: {told}" in str(raised.value)


@pytest.mark.parametrize("name", ["llama-bias", "mixtral", "qwen2"])
def test_projections_and_experts_that_are_fused_are_read(opened, name):
    """As llama.cpp's converter writes them with --fuse-qkv and --fuse-gate-up-exps."""
    arch, _, _ = gguf_files.TINY[name]
    arrays, stored = gguf_files.converted(arch, *gguf_files.tiny(name)), dict[str, Any]()
    fused = {"attn_qkv.weight": "attn_{}.weight", "attn_qkv.bias": "attn_{}.bias"}
    for layer in range(2):
        for whole, part in fused.items():
            names = [f"blk.{layer}.{part.format(letter)}" for letter in "qkv"]
            if names[0] in arrays:
                stored |= dict.fromkeys(names)
                stored[f"blk.{layer}.{whole}"] = np.concatenate([arrays[each] for each in names]), Kind.F32
        names = [f"blk.{layer}.ffn_{each}_exps.weight" for each in ("gate", "up")]
        if names[0] in arrays:
            stored |= dict.fromkeys(names)
            both = np.concatenate([arrays[each] for each in names], axis=1)
            stored[f"blk.{layer}.ffn_gate_up_exps.weight"] = both, Kind.F32
    file = in_hugging_face_layout(opened(name, stored=stored))
    _, tensors = gguf_files.tiny(name)
    assert {label: tuple(tensor.shape) for label, tensor in tensors.items()} == dict(file.shapes)
    for label, tensor in tensors.items():
        assert torch.equal(file.read(label), tensor), label


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gpt2", "rope_freqs.weight"),
        ("llama", "blk.0.attn_q.scale"),
        ("llama", "blk.0.novel.weight"),
        ("llama", "novel"),
    ],
)
def test_tensors_of_no_family_are_named(opened, name, tensor):
    stored = {tensor: (np.ones(8, np.float32), Kind.F32)}
    with pytest.raises(CheckpointError, match=rf"x.gguf holds tensors that no {name} has; 1 unexpected: {tensor}$"):
        opened(name, stored=stored)


def test_factors_of_the_rotation_are_no_tensor_of_the_model(opened):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    file = opened(stored={"rope_freqs.weight": (factors.astype(np.float16), Kind.F16)})
    assert file.config["rope_scaling"]["factors"] == factors.astype(np.float16).tolist()
    assert "rope_freqs.weight" not in file.shapes and not any("rope" in name for name in file.shapes)


def test_the_bytes_are_those_of_all_tensors_and_a_file_that_shrinks_is_named(opened, tmp_path):
    file = opened(tokenizer=False)
    _, plain = gguf_files.tiny("llama")
    assert file.num_bytes == sum(tensor.nbytes for tensor in plain.values())
    assert file.tokenizer() is None and file.generation_defaults() == {}
    info = file.infos["output.weight"]
    assert file.raw(info).shape == (281, 256)
    with (tmp_path / "x.gguf").open("r+b") as opened_file:
        opened_file.truncate(5000)
    with pytest.raises(CheckpointError, match=r"x.gguf ends inside tensor 'output.weight': it was changed while"):
        file.raw(info)
