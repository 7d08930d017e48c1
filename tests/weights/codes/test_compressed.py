"""compressed-tensors: its groups of matrices, what their settings may say, and what stands beside the codes."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.weights.codes.test_of_others import KINDS, NAME, directory, opened
from tokenmill.errors import CheckpointError
from tokenmill.weights.codes.checkpoint import describe_codes
from tokenmill.weights.codes.compressed import Compressed

FOUR, EIGHT, FP8 = "compressed 4 bits", "compressed int8 by rows", "compressed fp8 in blocks"


def settings(kind: str = FOUR, **more) -> dict:
    return json.loads(json.dumps(KINDS[kind]["quantization_config"])) | more


def group(kind: str = FOUR, /, **weights) -> dict:
    """The settings of that kind, with other ones of its weights."""
    found = settings(kind)
    found["config_groups"]["group_0"]["weights"] |= weights
    return found


def test_each_matrix_is_of_the_group_that_names_it_most_closely():
    four, eight, nine = (settings(kind)["config_groups"]["group_0"] for kind in (FOUR, EIGHT, FP8))
    groups = {"a": four, "b": eight | {"targets": ["re:.*down_proj$"]}, "c": nine | {"targets": ["model.x.down_proj"]}}
    found = {"config_groups": groups, "format": "mixed-precision", "kv_cache_scheme": {"num_bits": 8}}
    layout = Compressed.read(dict.fromkeys(("sparsity_config", "transform_config")) | found)
    kinds = [
        layout.of_module(name).kind for name in ("model.layers.0.up_proj", "model.y.down_proj", "model.x.down_proj")
    ]
    assert kinds == ["packed", "int", "float"]
    wanted = (
        "activations are not rounded as its config asks; the cache is not rounded as its config asks (kv_cache_scheme)"
    )
    assert layout.remark == wanted
    only = Compressed.read(
        dict.fromkeys(("sparsity_config", "transform_config")) | found | {"config_groups": {"b": groups["b"]}}
    )
    with pytest.raises(CheckpointError, match="lm_head is in none of its config_groups"):
        only.of_module("lm_head")


def layout_of(*groups: tuple[list[str], int], **more) -> Compressed:
    """The layout of groups of targets, each with codes of so many bits."""
    one = settings(FOUR)["config_groups"]["group_0"]
    made = {
        str(number): one | {"targets": targets, "weights": one["weights"] | {"num_bits": bits}}
        for number, (targets, bits) in enumerate(groups)
    }
    return Compressed.read(dict.fromkeys(("sparsity_config", "transform_config", "kv_cache_scheme")) | {
        "config_groups": made, "format": "pack-quantized"
    })  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "bits"),
    [
        ([(["re:.*mlp.*"], 4), (["re:.*down_proj"], 8)], 8),
        ([(["re:.*down_proj"], 8), (["re:.*mlp.*"], 4)], 8),
        ([(["re:.*down_proj"], 4), (["re:.*[.]mlp.*"], 8)], 8),  # "[" is before "d"
        ([(["Linear", "re:.*down_proj"], 4), (["model.layers.0.mlp.down_proj"], 8)], 8),
        ([(["re:.*"], 4), (["Linear"], 8)], 4),
        ([(["Linear"], 4), (["Linear"], 8)], 8),  # of the same target the last counts
        ([(["down_proj", "mlp.down_proj"], 4), (["Linear"], 8)], 8),  # a part of a name is none
        ([(["Embedding"], 4), (["Module"], 8)], 8),
    ],
    ids=str,
)
def test_of_several_targets_the_first_in_the_alphabet_counts(groups, bits):
    """The bits are those that compressed-tensors 0.20's match_targets chooses."""
    assert layout_of(*groups).of_module("model.layers.0.mlp.down_proj").bits == bits


def test_an_embedding_is_of_its_own_class():
    layout = layout_of((["Linear"], 4), (["Embedding"], 8))
    assert [layout.of_module(name).bits for name in ("model.embed_tokens", "lm_head")] == [8, 4]


@pytest.mark.parametrize(
    "target",
    [
        "model.language_model.layers.0.mlp.up_proj",
        "language_model.model.layers.0.mlp.up_proj",
        "language_model.layers.0.mlp.up_proj",
        "re:.*language_model.*up_proj",
        "re:^model[.]layers.*up_proj",
    ],
)
def test_targets_of_the_text_part_of_a_vision_model(target):
    """They name its modules as transformers, its older versions or the files do."""
    layout = layout_of((["Linear"], 4), ([target], 8))
    assert [layout.of_module(f"model.layers.0.mlp.{name}").bits for name in ("up_proj", "down_proj")] == [8, 4]
    head = layout_of((["Linear"], 4), (["language_model.lm_head"], 8))
    assert head.of_module("lm_head").bits == 8


def test_what_stands_beside_the_codes_is_no_weight(tmp_path):
    path = directory(tmp_path, EIGHT)
    tensors = load_file(path / "model.safetensors")
    beside = (
        "mlp.up_proj.input_scale",
        "self_attn.k_scale",
        "self_attn.v_zero_point",
        "mlp.up_proj.input_global_scale",
    )
    for name in beside:
        tensors[f"model.layers.0.{name}"] = torch.ones(1)
    save_file(tensors, path / "model.safetensors")
    assert set(opened(path).shapes) == {f"{NAME}.weight"}


def test_nvfp4_by_hand(tmp_path):
    """Codes of E2M1, a scale in fp8 for each 16 of them, and one number by which all scales are divided."""
    config = settings("compressed MXFP4")
    config["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized"
    config["config_groups"]["group_0"]["weights"] |= {"group_size": 16, "strategy": "tensor_group"}
    path = directory(tmp_path, "compressed MXFP4", quantization_config=config)
    packed = torch.arange(256, dtype=torch.uint8).view(8, 32)
    scales = torch.arange(1, 33).view(8, 4).to(torch.float8_e4m3fn)
    parts = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": torch.tensor([4.0])}
    save_file({f"{NAME}.{part}": each for part, each in parts.items()}, path / "model.safetensors")
    found = opened(path)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
    wanted = table[codes] * scales.float().repeat_interleave(16, 1) / 4
    assert torch.equal(found.read(f"{NAME}.weight"), wanted)
    assert "1 of its 1 matrices have numbers in NVFP4" in found.dequantized


def test_inputs_out_of_order_are_read_as_values(tmp_path):
    path = directory(tmp_path, FOUR)
    tensors = load_file(path / "model.safetensors")
    wanted = opened(path).read(f"{NAME}.weight")
    tensors[f"{NAME}.weight_g_idx"] = torch.arange(64, dtype=torch.int32) // 32
    save_file(tensors, path / "model.safetensors")
    assert torch.equal(opened(path).read_codes(f"{NAME}.weight").values(), wanted)
    tensors[f"{NAME}.weight_g_idx"] = tensors[f"{NAME}.weight_g_idx"].flip(0)
    save_file(tensors, path / "model.safetensors")
    found, scales = opened(path), tensors[f"{NAME}.weight_scale"].float()
    assert found.read_codes(f"{NAME}.weight") is None and "inputs that are out of order" in found.dequantized
    codes = wanted.reshape(8, 2, 32) / scales[..., None]
    assert torch.equal(found.read(f"{NAME}.weight"), (codes * scales.flip(1)[..., None]).flatten(1))
    tensors[f"{NAME}.weight_g_idx"][3] = 2
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(CheckpointError, match="weight_g_idx names groups that do not exist: it has 2"):
        opened(path).read(f"{NAME}.weight")


@pytest.mark.parametrize("unset", [slice(None), slice(5, 6)], ids=["all", "one"])
def test_a_g_idx_of_minus_one_says_that_inputs_are_in_order(unset, tmp_path):
    """compressed-tensors 0.9 to 0.11: dequantize takes groups in order where -1 is in g_idx."""
    path = directory(tmp_path, FOUR, quantization_config=group(actorder="group"))
    tensors, wanted = load_file(path / "model.safetensors"), opened(path).read(f"{NAME}.weight")
    groups = torch.arange(64, dtype=torch.int32).flip(0) // 32
    groups[unset] = -1
    save_file(tensors | {f"{NAME}.weight_g_idx": groups}, path / "model.safetensors")
    found = opened(path)
    assert torch.equal(found.read(f"{NAME}.weight"), wanted) and found.dequantized == ""
    assert torch.equal(found.read_codes(f"{NAME}.weight").values(), wanted)


@pytest.mark.parametrize("shape", [[8, 65], [9, 64], [8, 0], [8, 1 << 30], [8]])
def test_a_shape_that_does_not_fit_is_refused(shape, tmp_path):
    path = directory(tmp_path, FOUR)
    tensors = load_file(path / "model.safetensors") | {f"{NAME}.weight_shape": torch.tensor(shape)}
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"is not the shape of its codes|does not fit its config"):
        opened(path)


def test_codes_with_more_bits_than_said_are_refused(tmp_path):
    path = directory(tmp_path, "compressed 4 bits a byte each")
    tensors = load_file(path / "model.safetensors")
    tensors[f"{NAME}.weight"][2, 5] = 8
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_proj.weight holds codes that have more than 4 bits"):
        opened(path).read(f"{NAME}.weight")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (settings(format="marlin-24"), "config_groups"),
        (settings(config_groups={}), "no 'config_groups'"),
        (settings(config_groups={"W8A8": ["Linear"]}), "must be an object with named values"),
        (settings(config_groups={"a": {"targets": ["Linear"]}}), "config_groups has no group with weights"),
        (settings(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (settings(transform_config={"config_groups": {}}), "transform_config is not implemented"),
        (settings(quantization_status="initialized"), "quantization_status = 'initialized' is not implemented"),
        (settings(novel=1), "does not know: novel = 1"),
        (group(num_bits=9), "num_bits = 9 is not allowed: a whole number from 1 to 8"),
        (group(type="float"), "num_bits = 4 is not allowed"),
        (group(strategy="token"), "strategy = 'token' is not implemented"),
        (group(group_size=0), "group_size = 0 is not allowed"),
        (group(novel=1), "does not know: novel = 1"),
        (group(FP8, block_structure=[128]), "block_structure = [128] is not allowed: two whole numbers"),
        (group("compressed MXFP4", group_size=16), "groups of 32"),
    ],
    ids=str,
)
def test_settings_that_are_refused(config, message):
    if message == "config_groups":  # the format of a group goes first
        config["config_groups"]["group_0"]["format"] = None
        message = "format 'marlin-24' is not implemented: only pack-quantized, int-quantized"
    with pytest.raises(CheckpointError) as raised:
        describe_codes({"quantization_config": config})
    assert message in str(raised.value)


def test_a_target_that_is_no_pattern_is_refused(tmp_path):
    config = settings()
    config["config_groups"]["group_0"]["targets"] = ["re:("]
    with pytest.raises(CheckpointError, match=r"target 're:\(' is no regular expression"):
        opened(directory(tmp_path, FOUR, quantization_config=config))
