"""Codes of other programs: each matrix has the values that the program which packed it reads back.

of_others.json holds tiny matrices of compressed-tensors 0.20, bitsandbytes 0.50, mlx 0.32, auto-round 0.16 and autoawq
0.2.9; `benchmarks/quantized_vectors.py` makes it with these packages.
"""

import base64
import hashlib
import json
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.tiny_models import prompt
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint
from tokenmill.weights.codes.methods import name_method
from tokenmill.weights.plain import PlainCheckpoint

KINDS = json.loads(Path(__file__).with_name("of_others.json").read_text())
NAME = "model.layers.0.mlp.up_proj"
AS_VALUES = ("fp8", "nf4", "fp4", "LLM.int8", "int8 with zeros", "int8 in float32", "groups of 16", "4 by 16")
AS_VALUES += ("affine 5", "affine 6", "affine 8", "MXFP6", "MXFP8", "mxfp8", "nvfp4")
SOME = ("compressed 4 bits with zeros", "compressed int8 with zeros", "compressed fp8 in blocks", "compressed MXFP4")
SOME += ("nf4 nested", "LLM.int8", "MLX affine 4 by 64", "MLX mxfp4 4 by 32", "auto_round:auto_gptq 4 by 32")
SOME += ("AWQ gemm by 32", "AWQ gemv_fast by 64")
TOLD_BY_CODES = "auto_round:auto_gptq 8 by 32"  # whose zeros lie too far from 128


def tensor(dtype: str, shape: list[int], text: str) -> torch.Tensor:
    raw = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(raw, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def directory(path: Path, kind: str, without: str = "", **more: object) -> Path:
    """A directory of one matrix, with what a config of that size needs."""
    settings = {key: KINDS[kind][key] for key in ("quantization_config", "quantization") if key in KINDS[kind]}
    rows, columns = KINDS[kind]["shape"]
    config = {"model_type": "llama", "vocab_size": 8, "hidden_size": columns, "intermediate_size": rows}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 4, "dtype": "float32"} | settings | more
    (path / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor(*each) for name, each in KINDS[kind]["tensors"].items() if name != without}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def coded_llama(kind: str, path: Path) -> Path:
    """A whole model of one layer: gate and up are the matrix of this kind, all else is in floating point."""
    path.mkdir(exist_ok=True)
    rows, columns = KINDS[kind]["shape"]
    shapes = {"mlp.down_proj": (columns, rows)} | {f"self_attn.{part}_proj": (columns, columns) for part in "qkvo"}
    generator = torch.Generator().manual_seed(rows)
    tensors = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {f"model.layers.0.{name}_layernorm.weight": (columns,) for name in ("input", "post_attention")}
    tensors |= {
        "model.norm.weight": (columns,),
        "model.embed_tokens.weight": (64, columns),
        "lm_head.weight": (64, columns),
    }
    numbers = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in tensors.items()}
    directory(path, kind, vocab_size=64, max_position_embeddings=128)
    coded = {name: tensor(*each) for name, each in KINDS[kind]["tensors"].items()}
    coded |= {name.replace("up_proj", "gate_proj"): each.clone() for name, each in coded.items()}
    save_file(numbers | coded, path / "model.safetensors", {"format": "pt"})
    return path


def opened(path: Path) -> QuantizedCheckpoint:
    """The matrix alone, of a model that lacks all else."""
    config = name_method(json.loads((path / "config.json").read_text()), path)
    return QuantizedCheckpoint(PlainCheckpoint(path, config, [path / "model.safetensors"]))


def digest(values: torch.Tensor) -> str:
    return hashlib.sha256((values.contiguous() + 0.0).numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_program_that_packed_them(kind, tmp_path):
    found = opened(directory(tmp_path, kind))
    values, wanted = found.read(f"{NAME}.weight"), KINDS[kind]
    assert list(values.shape) == list(found.shapes[f"{NAME}.weight"]) == wanted["shape"]
    torch.testing.assert_close(values[0], tensor("float32", [values.shape[1]], wanted["row"]), rtol=0, atol=0)
    assert digest(values) == wanted["digest"]
    assert torch.equal(found.read(f"{NAME}.weight", torch.bfloat16, range(2, 5)), values.bfloat16()[2:5])


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_kept_where_they_can_be(kind, tmp_path, caplog):
    """What is kept says the same to float32's rounding; what is not is said."""
    found = opened(directory(tmp_path, kind))
    codes, wanted = found.read_codes(f"{NAME}.weight"), found.read(f"{NAME}.weight")
    is_kept = not any(part in kind.replace("mxfp4", "") for part in AS_VALUES) and kind != TOLD_BY_CODES
    assert (codes is not None) == is_kept
    if codes is not None:
        assert codes.bits == (4 if "stored_as_codes" in found.config and found.config["stored_as_codes"] == 5 else 8)
        assert torch.equal(codes.values()[:, : wanted.shape[1]], wanted)
        assert torch.equal(found.read_codes(f"{NAME}.weight", range(3, 6)).values(), codes.values()[3:6])
    elif kind == TOLD_BY_CODES:
        assert "codes of 8 bits with zeros too far from the middle of their codes are read as values" in caplog.text
    else:
        assert found.dequantized.startswith("read as values") and "1 of its 1 matrices have " in found.dequantized
        assert "stored_as_codes" not in found.config


@pytest.mark.parametrize("kind", SOME)
def test_every_part_is_missed_that_is_needed(kind, tmp_path):
    optional = {"weight_g_idx", "weight_format"}
    for name in KINDS[kind]["tensors"]:
        if name.rpartition(".")[2] in optional:
            continue
        try:
            shapes = opened(directory(tmp_path, kind, without=name)).shapes
        except CheckpointError as error:
            assert name in str(error) or "no scale is beside the codes of" in str(error)
        else:
            assert f"{NAME}.weight" not in shapes, "which a load reports"


def test_awq_without_zeros_is_symmetric_where_its_config_says_so(tmp_path):
    settings = KINDS["AWQ gemm by 32"]["quantization_config"] | {"zero_point": False}
    path = directory(tmp_path, "AWQ gemm by 32", without=f"{NAME}.qzeros", quantization_config=settings)
    assert opened(path).read(f"{NAME}.weight").shape == (32, 64)


@pytest.mark.parametrize("kind", ["compressed int8 by rows", "nf4", "MLX affine 4 by 64", "AWQ gemm by 32"])
def test_a_model_computes_with_these_values(kind, tmp_path):
    path, plain = coded_llama(kind, tmp_path / "m"), tmp_path / "plain"
    plain.mkdir()
    found = open_checkpoint(path)
    save_file({name: found.read(name).contiguous() for name in found.shapes}, plain / "model.safetensors")
    config = {key: value for key, value in found.config.items() if not key.endswith("as_codes")}
    (plain / "config.json").write_text(json.dumps(config))
    ids, how = [number % 64 for number in prompt(40)], {"dtype": "float32", "threads": 1}
    wanted = load(plain, scheme="dense", **how).logits(ids)
    torch.testing.assert_close(load(path, scheme="dense", **how).logits(ids), wanted, rtol=1e-5, atol=1e-5)
    for scheme in ("file", "q8"):
        assert (load(path, scheme=scheme, **how).logits(ids) - wanted).abs().max() <= 0.1 * wanted.std()
