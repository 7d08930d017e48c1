"""The method of a directory whose config.json does not name it as transformers does."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.weights.codes.test_of_others import KINDS, NAME, directory, opened
from tokenmill.errors import CheckpointError
from tokenmill.weights.checkpoint import read_config_json
from tokenmill.weights.codes.methods import name_method

GPTQ, AWQ, MLX = "auto_round:auto_gptq 4 by 32", "AWQ gemm by 32", "MLX affine 4 by 32"


def test_awqs_first_files_have_a_config_of_their_own(tmp_path):
    path = directory(tmp_path, AWQ)
    wanted = opened(path).read(f"{NAME}.weight")
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    (path / "quant_config.json").write_text('{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}')
    assert torch.equal(opened(path).read(f"{NAME}.weight"), wanted)


def test_mlx_may_say_it_once_or_twice(tmp_path):
    own = KINDS[MLX]["quantization"]
    for config in (
        {"quantization": own},
        {"quantization": own, "quantization_config": own},
        {"quantization_config": own},
    ):
        found = name_method({"x": 1} | config, tmp_path)
        assert found == {"x": 1, "quantization_config": {**own, "modules": {}, "quant_method": "mlx"}}


@pytest.mark.parametrize(
    "config", [{}, {"quantization": 3}, {"quantization_config": {"bits": 4}}, {"quantization_config": 3}]
)
def test_all_else_stays_as_it_is(config, tmp_path):
    assert name_method(config, tmp_path) == config


def test_matrices_of_gptq_may_have_bits_and_groups_of_their_own(tmp_path):
    """What AutoRound's extra_config and GPTQModel's dynamic rules choose is told by the shapes."""
    path = directory(tmp_path, GPTQ)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["extra_config"] = {"x": {"bits": 3}}
    for kind in ("auto_round:auto_gptq 3 by 32", "auto_round:auto_gptq 4 by 16", GPTQ):
        tensors = directory(tmp_path, kind)
        (path / "config.json").write_text(json.dumps(config))
        found = opened(tensors)
        other = opened(directory(tmp_path, kind))
        assert torch.equal(found.read(f"{NAME}.weight"), other.read(f"{NAME}.weight")), kind
    del config["quantization_config"]["extra_config"]
    directory(tmp_path, "auto_round:auto_gptq 3 by 32")
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="does not fit its config"):
        opened(path)


def test_inputs_of_gptq_that_are_out_of_order_are_said(tmp_path):
    path = directory(tmp_path, GPTQ)
    config = json.loads((path / "config.json").read_text())
    own = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": own, "dtype": "float16"}))
    tensors, wanted = load_file(path / "model.safetensors"), opened(path).read(f"{NAME}.weight")
    tensors[f"{NAME}.g_idx"] = torch.arange(64, dtype=torch.int32) // 32
    save_file(tensors, path / "model.safetensors")
    assert opened(path).dequantized == "" and torch.equal(opened(path).read_codes(f"{NAME}.weight").values(), wanted)
    tensors[f"{NAME}.g_idx"] = tensors[f"{NAME}.g_idx"][torch.arange(64).view(2, 32).t().flatten()]
    save_file(tensors, path / "model.safetensors")
    found = opened(path)
    assert "1 of its 1 matrices have inputs that are out of order (desc_act)" in found.dequantized
    save_file(tensors | {f"{NAME}.g_idx": torch.zeros(64, dtype=torch.int32)}, path / "model.safetensors")
    unset = opened(path)  # as ExLlama's kernels take zeros alone
    assert unset.dequantized == "" and torch.equal(unset.read_codes(f"{NAME}.weight").values(), wanted)
    save_file(tensors, path / "model.safetensors")
    assert found.read_codes(f"{NAME}.weight") is None and "stored_as_codes" not in found.config
    assert found.read(f"{NAME}.weight").shape == (32, 64) and found.config["dtype"] == "float16"


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ("auto_round:mlx_static", "packing_format = 'auto_round:mlx_static' is not allowed"),
        ("auto_round:llm_compressor", "packing_format 'llm_compressor' with data_type 'int' is not implemented"),
        ("gptq", "packing_format = 'gptq' is not allowed: auto_round:auto_gptq, auto_round:auto_awq, auto_round:llm_"),
        (None, "auto-round: packing_format = None is not allowed"),
    ],
)
def test_packings_of_auto_round_that_are_refused(packing, message, tmp_path):
    own = KINDS[GPTQ]["quantization_config"] | {"packing_format": packing}
    with pytest.raises(CheckpointError) as raised:
        read_config_json(directory(tmp_path, GPTQ, quantization_config=own))
    assert message in str(raised.value) or (packing is None and "has no 'packing_format'" in str(raised.value))
