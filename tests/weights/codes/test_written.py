"""Whole directories as AutoRound, llm-compressor, mlx-lm and bitsandbytes wrote them: every matrix has the values that
its writer reads back, and the logits are those of transformers' model with these values.

written.json is made by `benchmarks/written_directories.py` with these programs.
"""

import base64
import functools
import hashlib
import json
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import foreseen_config, open_checkpoint

FILE = json.loads(Path(__file__).with_name("written.json").read_text())
WRITTEN, IDS = FILE["directories"], [5, 9, 20, 31, 47, 50, 3, 42, 18, 60, 21]


@functools.cache
def blob(key: str) -> bytes:
    return zlib.decompress(base64.b64decode(FILE["blobs"][key]))


def tensor(dtype: str, shape: list[int], key: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(blob(key)), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def directory(path: Path, name: str, **settings: object) -> Path:
    """The directory as it was written, or with these entries of its quantization_config in place of its own."""
    config = json.loads(json.dumps(WRITTEN[name]["config"]))
    for key, value in settings.items():
        config["quantization_config"][key] = value
    (path / "config.json").write_text(json.dumps(config))
    tensors = {key: tensor(*each) for key, each in WRITTEN[name]["tensors"].items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def names_of(found, name: str) -> list[str]:
    """The checkpoint's names of a matrix that the file's name says: those of single experts, and of GPT-2 in MLX."""
    if "switch_mlp" in name:
        return [name.replace("switch_mlp", f"experts.{number}") for number in (0, 1)]
    return [name if name in found.shapes else name.replace("model.", "transformer.", 1)]


@pytest.mark.parametrize("name", WRITTEN)
def test_values_are_those_that_the_writer_reads_back(name, tmp_path):
    found, wanted = open_checkpoint(directory(tmp_path, name)), WRITTEN[name]
    for matrix, digest in wanted["digests"].items():
        parts = []
        for shown in names_of(found, matrix):
            assert shown in found.parts
            values = found.read(shown)
            parts.append(values.t() if shown in found.transposed else values)
        values = (torch.stack(parts) if len(parts) > 1 else parts[0]).contiguous()
        values = (values.bfloat16() if wanted["in_half"] else values).float() + 0.0
        assert hashlib.sha256(values.numpy().tobytes()).hexdigest() == digest, matrix
    coded = sum(len(names_of(found, matrix)) for matrix in wanted["digests"])
    assert len(found.parts) == coded
    assert foreseen_config(tmp_path) == found.config


FIRST = {name.split("-")[1]: name for name in reversed(WRITTEN)}.values()
"""One directory with codes of each form."""
COMPUTED = [
    # the codes are the same in both programs: eager has those of one directory of each form by default
    pytest.param(name, *way, marks=() if name in FIRST or way != ("eager", "auto") else pytest.mark.long)
    for name in WRITTEN
    for way in (("eager", "dense"), ("eager", "auto"), ("native", "auto"))
]


@pytest.mark.parametrize(("name", "program", "scheme"), COMPUTED)
def test_logits_are_those_of_a_plain_model_with_these_values(name, program, scheme, tmp_path):
    """In floating point to float32's rounding; with the file's codes, activations are rounded to 8 bits."""
    wanted = torch.tensor(WRITTEN[name]["logits"])
    with load(directory(tmp_path, name), program=program, dtype="float32", scheme=scheme, threads=1) as engine:
        got = engine.logits(IDS)[-1]
    if scheme == "dense":
        bound = (
            1e-2 if WRITTEN[name]["in_half"] else 1e-4
        )  # numbers of bfloat16, in which writers of NVFP4 read it back
        torch.testing.assert_close(got, wanted, rtol=bound, atol=bound * float(wanted.abs().max()))
    assert (got - wanted).abs().max() <= 0.1 * wanted.abs().max()


def test_numbers_that_no_scheme_holds_are_said(tmp_path):
    for name in ("ar-mxfp8", "ar-fp8_static", "mlxlm-nvfp4", "lc-mxfp8"):
        found = open_checkpoint(directory(tmp_path, name))
        assert "matrices have numbers in " in found.dequantized and "stored_as_codes" not in found.config
    for name in ("ar-mxfp4", "ar-mxint4", "ar-w5-asym", "arawq-w6", "lc-embedding"):
        found = open_checkpoint(directory(tmp_path, name))
        assert "read as values" not in found.dequantized
        assert all(found.read_codes(matrix) is not None for matrix in WRITTEN[name]["digests"])


def test_what_is_asked_of_activations_and_the_cache_is_said(tmp_path):
    for name in ("ar-mxfp4", "ar-nvfp4", "ar-fp8_static", "fp8-block", "llmc-int8"):
        assert "activations are not rounded" in open_checkpoint(directory(tmp_path, name)).dequantized, name
    assert "the cache is not rounded" in open_checkpoint(directory(tmp_path, "lc-fp8-kv")).dequantized
    assert "activations" not in open_checkpoint(directory(tmp_path, "ar-fpw8a16")).dequantized
    asked = {"static_kv_dtype": "fp8", "activation": {"mode": "w4afp8"}}
    said = open_checkpoint(directory(tmp_path, "gptq-w4-gpt2", **asked)).dequantized
    assert "the cache is not rounded as its config asks (static_kv_dtype)" in said
    assert "activations are not rounded as its config asks (activation)" in said


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ar-w4-mf", {"rotation_config": {"algorithm": "hadamard"}}, "does not know: rotation_config = {"),
        ("ar-w4-mf", {"packing_format": "auto_round:llm_compressor"}, "with data_type 'int' is not implemented"),
        ("ar-w4-mf", {"act_bits": 8}, "data_type 'int' with 4 bits, and activations of 8, is not implemented"),
        ("ar-w2", {"packing_format": "auto_round:auto_awq"}, "2 bits in AWQ's layout: only 4 to 7"),
        ("ar-mxfp4", {"bits": 6}, "data_type 'mx_fp' with 6 bits"),
        ("ar-nvfp4", {"data_type": "nvfp4_v2"}, "data_type = 'nvfp4_v2' is not implemented: only 'int', 'mx_fp'"),
        ("ar-fp8_static", {"fmt": "e5m2"}, "fmt = 'e5m2' is not implemented: only 'e4m3'"),
        ("ar-mxfp4", {"group_size": 16, "novel": 1}, "does not know: novel = 1"),
        ("gptq-w4-gpt2", {"format": "gptq_p"}, "format = 'gptq_p' is not implemented"),
        ("gptq-w4-gpt2", {"rotation": "hadamard"}, "does not know: rotation = 'hadamard'"),
    ],
)
def test_settings_that_change_the_arithmetic_are_refused(name, settings, message, tmp_path):
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(directory(tmp_path, name, **settings))
    assert message in str(raised.value)


def test_gptqmodels_keys_are_known(tmp_path):
    """GPTQModel 7.7 names the method twice; its meta says how codes were chosen."""
    more = {"method": "gptq", "format": "gptq", "checkpoint_format": "gptq", "pack_dtype": "int32"}
    more |= {"meta": {"quantizer": ["gptqmodel:7.7.0"], "damp_percent": 0.05, "gc_mode": "interval"}}
    assert open_checkpoint(directory(tmp_path, "gptq-w4-mixed", **more)).shapes
    more = {"method": "awq", "format": "gemm", "checkpoint_format": "gemm", "pack_dtype": "int32", "desc_act": False}
    assert open_checkpoint(directory(tmp_path, "awq-w4", **more)).shapes


def test_rope_parameters_that_auto_round_left_beside_all_else_are_read(tmp_path):
    """Its export to MLX takes them out of rope_parameters."""
    path = directory(tmp_path, "mlx-w4")
    config = json.loads((path / "config.json").read_text())
    assert config["rope_type"] == "default" and "rope_parameters" not in config
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled["original_max_position_embeddings"] = 16
    (path / "config.json").write_text(json.dumps(config | scaled))
    found = open_checkpoint(path).config
    assert found["rope_scaling"] == scaled and found["rope_theta"] == 10000.0 and "factor" not in found
