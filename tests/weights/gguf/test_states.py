"""Files of families whose layers keep a state, written the way llama.cpp's converter writes them.

The keys are those that the converter wrote (converted_keys.json). The tensors are turned round here as it does
(conversion/lfm2.py, qwen.py, mamba.py, granite.py, nemotron.py and falcon_h1.py of the source in llama-cpp-python
0.3.36).
"""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.gguf_files import ADD, random_rows
from tests.gguf_models import numbers_of
from tests.tiny_models import TINY, VOCABULARY, build, prompt
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.quant.schemes import find_scheme
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.source import WeightSource
from tokenmill.weights.write.quantize import quantize

RECORDED = json.loads(Path(__file__).with_name("converted_keys.json").read_text())
KINDS = ("lfm2", "qwen3_", "granitemoehybrid-", "nemotron_h", "mamba2", "falcon_h1")
NAMES = [name for name in RECORDED if name.startswith(KINDS)]
KIND = gguf.GGMLQuantizationType


def tiled(tensor: Tensor, heads: tuple[int, int], dim: int = 0) -> Tensor:
    """Heads of v, grouped by the heads of k, as llama.cpp repeats the latter: K0 K1 K0 K1, and not K0 K0 K1 K1."""
    k, v = heads
    width = tensor.shape[dim] // v
    order = [head * (v // k) + turn for turn in range(v // k) for head in range(k)]
    places = [place for head in order for place in range(head * width, (head + 1) * width)]
    return tensor.index_select(dim, torch.tensor(places))


def turned(name: str, tensor: Tensor, heads: tuple[int, int], keys: int) -> Tensor:
    """One tensor of Qwen 3.5; keys: the rows of q and k together."""
    part = name.partition("linear_attn.")[2]
    if part.startswith(("in_proj_qkv", "conv1d")):
        rows = tensor.squeeze(1) if part.startswith("conv1d") else tensor
        return torch.cat([rows[:keys], tiled(rows[keys:], heads)])
    if part.startswith(("in_proj_", "dt_bias")):
        return tiled(tensor, heads)
    if part == "A_log":
        return tiled(-tensor.exp(), heads)
    if part.startswith("out_proj"):
        return tiled(tensor, heads, dim=1)
    return tensor + 1 if name.endswith("norm.weight") and not part else tensor


def by_kinds(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of Qwen3-Next under their names in a file, with the matrix of q, k, v and z as two."""
    k_heads, served = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    parts, found = [config["linear_key_head_dim"]] * 2 + [served * config["linear_value_head_dim"]] * 2, {}
    for name, tensor in tensors.items():
        if name.endswith("in_proj_qkvz.weight"):
            heads, begin = tensor.reshape(k_heads, sum(parts), -1), f"blk.{name.split('.')[2]}.attn_"
            q, k, v, z = (part.flatten(0, 1) for part in heads.split(parts, dim=1))
            found |= {f"{begin}qkv.weight": torch.cat([q, k, v]), f"{begin}gate.weight": z}
        elif name.endswith("A_log"):
            found[name] = -tensor.exp()
        else:
            is_norm = name.endswith("norm.weight") and "linear_attn" not in name
            found[name] = tensor + 1 if is_norm else tensor.squeeze(1) if "conv1d" in name else tensor
    return found


def turned_mamba(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """One tensor of Mamba 2, or of attention, whose rows rotate in pairs; in Nemotron-H none rotates."""
    if name.endswith(".conv1d.weight"):
        return tensor.squeeze(1)
    if name.endswith((".A_log", ".D")):
        return (tensor if name.endswith(".D") else -tensor.exp())[:, None]
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        return tensor.reshape(config["mamba_n_groups" if ".mamba." in name else "n_groups"], -1)
    if name.endswith((".q_proj.weight", ".k_proj.weight")) and config["model_type"] != "falcon_h1":
        heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
        return tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def multiplied(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """One tensor of Falcon-H1 times its multipliers."""
    inside, outside = config["attention_in_multiplier"], config["attention_out_multiplier"]
    gate, down = config["mlp_multipliers"]
    width, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    rows = (width, width, shared, shared, config["mamba_n_heads"])
    of_rows = [config["ssm_in_multiplier"] * each for each in config["ssm_multipliers"]]
    factors = {
        "embed_tokens.weight": config["embedding_multiplier"],
        "lm_head.weight": config["lm_head_multiplier"],
        "q_proj.weight": inside,
        "k_proj.weight": inside * config["key_multiplier"],
        "v_proj.weight": inside,
        "o_proj.weight": outside,
        "gate_proj.weight": gate,
        "gate_proj.bias": gate,
        "down_proj.weight": down,
        "down_proj.bias": down,
        "in_proj.weight": torch.tensor(of_rows).repeat_interleave(torch.tensor(rows))[:, None],
        "out_proj.weight": config["ssm_out_multiplier"],
    }
    return tensor * next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)


def split_gates(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Granite's matrices of gate and up as two, under their names in a file; without experts there is one MLP."""
    has_experts, found = any("block_sparse_moe" in name for name in tensors), {}
    for name, tensor in tensors.items():
        _, _, layer, *_ = name.split(".") if ".layers." in name else ("", "", "")
        kind = "_exps" if "block_sparse_moe" in name else "_shexp" if has_experts else ""
        if "input_linear" in name:
            gate, up = tensor.chunk(2, dim=-2)
            found |= {f"blk.{layer}.ffn_gate{kind}.weight": gate, f"blk.{layer}.ffn_up{kind}.weight": up}
        else:
            found[f"blk.{layer}.ffn_down{kind}.weight" if "output_linear" in name else name] = tensor
    return found


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The experts of a layer in one tensor."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        stack, number = re.sub(r"experts\.\d+\.", "experts.", name), re.search(r"experts\.(\d+)\.", name)
        if number is None:
            found[name] = tensor
        else:
            found.setdefault(stack, {})[int(number[1])] = tensor
    return {
        name: torch.stack([each[number] for number in sorted(each)]) if isinstance(each, dict) else each
        for name, each in found.items()
    }


def arrays_of(name: str, directory: Path) -> dict[str, np.ndarray]:
    arch, config = RECORDED[name]["general.architecture"], json.loads((directory / "config.json").read_text())
    config = config.get("text_config", config)
    kind = next(kind for kind, own in gguf.MODEL_ARCH_NAMES.items() if own == arch)
    names, found = gguf.get_tensor_name_map(kind, RECORDED[name][f"{arch}.block_count"]), {}
    tensors = stacked(load_file(directory / "model.safetensors"))
    tensors = split_gates(tensors) if arch == "granitehybrid" else tensors
    tensors = by_kinds(tensors, config) if arch == "qwen3next" else tensors
    for label in (label for label in tensors if ".visual." not in label):
        tensor = tensors[label]
        if arch.startswith("qwen35"):
            heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
            tensor = turned(label, tensor, heads, 2 * heads[0] * config["linear_key_head_dim"])
        elif label.endswith("conv.conv.weight"):
            tensor = tensor.squeeze(1)
        elif arch in ("granitehybrid", "nemotron_h", "nemotron_h_moe", "mamba2", "falcon-h1"):
            tensor = turned_mamba(label, tensor, config)
            tensor = multiplied(label, tensor, config) if arch == "falcon-h1" else tensor
        own = label if label.startswith("blk.") else names.get_name(known_as(label), (".weight", ".bias"))
        found[own] = tensor.contiguous().numpy()
    return found


def known_as(label: str) -> str:
    """The name that the map of the gguf package has, for which the converter changes some."""
    for old, new in (
        (".language_model", ""),
        (".expert_bias", ".expert_bias.bias"),
        (".dt_bias", ".dt_proj.bias"),
        (".e_score_correction_bias", ".e_score_correction.bias"),
    ):
        label = label.replace(old, new)
    if ".mixer.experts." in label:
        label = label.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
    return label.removeprefix("model.") if ".feed_forward.experts." in label else label


def write(path: Path, name: str, directory: Path, stored: dict[str, Any] | None = None, **changes: Any) -> Path:
    """stored: bytes in the place of a tensor, and their type; or None in the place of both. changes: of the keys, with
    _ for a point."""
    metadata = {**RECORDED[name], f"{RECORDED[name]['general.architecture']}.vocab_size": VOCABULARY}
    arch = metadata.pop("general.architecture")
    metadata |= {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    data = {label: (array, KIND.F32) for label, array in arrays_of(name, directory).items()} | (stored or {})
    writer = gguf.GGUFWriter(None, arch)
    for key, value in metadata.items():
        if value is not None:
            ADD[type(value)](writer, key, value)
    for label, entry in data.items():
        if entry is not None:
            writer.add_tensor(label, entry[0], raw_dtype=entry[1])
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")

    def of(name: str) -> Path:
        if not (folder / name).exists():
            build(*numbers_of(name)).save_pretrained(folder / name)
        return folder / name

    return of


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_the_converter_has_the_logits_of_transformers(tmp_path, directories, name):
    path, ids = write(tmp_path / "x.gguf", name, directories(name)), prompt(24)
    found = load(path, program="eager", scheme="dense", dtype="float32", threads=1, max_length=48).logits(ids)
    with torch.inference_mode():
        wanted = build(*numbers_of(name))(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    # Delta nets of transformers differ from each other by this much, chunks against steps.
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-4 * wanted.abs().max().item())


WIDE = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "hidden_size": 64}
WIDE_KEYS = {"embedding_length": 64, "ssm__state_size": 64, "ssm__inner_size": 256}


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("wide") / "model"
    build(*numbers_of("qwen3_5_text", **WIDE)).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("kind", [KIND.Q4_0, KIND.Q8_0, KIND.Q4_K, KIND.Q5_K, KIND.Q6_K], ids=lambda kind: kind.name)
def test_codes_are_kept_in_the_order_of_the_model(tmp_path, wide, kind):
    """A head of v is a part of a block there, whose groups go with it."""
    out, z = random_rows(kind, 64, 256), random_rows(KIND.Q4_1, 256, 64)
    stored = {"blk.0.ssm_out.weight": (out, kind), "blk.0.attn_gate.weight": (z, KIND.Q4_1)}
    path = write(tmp_path / "x.gguf", "qwen3_5_text", wide, stored, **WIDE_KEYS)
    checkpoint = open_checkpoint(path)
    source = WeightSource(checkpoint, read_config(checkpoint.config), find_scheme("file"), torch.float32)
    qkvz = source.matrix(0, "delta_net.qkvz")
    assert [part.num_rows for part in qkvz] == [512, 256] and qkvz[0].codes is None
    (whole,) = source.matrix(0, "delta_net.out")
    for found, rows, dim, file_kind in ((whole, out, 1, kind), (qkvz[1], z, 0, KIND.Q4_1)):
        assert found.codes is not None or found.halves is not None
        wanted = torch.from_numpy(gguf.dequantize(rows, file_kind))
        assert torch.equal(tiled(found.values(), (2, 4), dim), wanted)
    for role, first, found in (("out", 0, whole), ("qkvz", 512, qkvz[1])):
        (some,) = source.matrix(0, f"delta_net.{role}", range(first + 16, first + 48))
        assert torch.equal(some.values(), found.values()[16:48])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lfm2", {"attention__head_count_kv": [0, 2]}, "for each of 3 layers"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0]}, "a number above 0 for some layer"),
        ("lfm2", {"attention__head_count_kv": [0, 2, 3]}, "it differs by layer"),
        ("lfm2", {"attention__sliding_window": 8}, "does not know: lfm2.attention.sliding_window = 8"),
        ("lfm2_moe", {"expert_gating_func": 1}, "expert_gating_func = 1 is not implemented"),
        ("lfm2_moe", {"expert_weights_scale": 2.5}, "expert_weights_scale = 2.5 is not implemented"),
        ("qwen3_5_text", {"attention__recurrent_layers": [True]}, "for each of 4 layers"),
        ("qwen3_5_text", {"attention__recurrent_layers": [True, True, False, True]}, "does not fit its config"),
        ("qwen3_5_text", {"ssm__inner_size": 48}, "ssm.inner_size = 48 is not implemented: only 32"),
        ("qwen3_5_text", {"ssm__group_count": 3}, "linear_num_value_heads = 4 is not allowed"),
        ("nemotron_h", {"feed_forward_length": [0, 0, 0, 0]}, "a number above 0 for some layer"),
        ("nemotron_h", {"feed_forward_length": [40, 0, 40, 40]}, "does not fit its config"),
        ("nemotron_h", {"expert_used_count": [2, 2, 2, 1]}, "it differs by layer"),
        ("nemotron_h", {"expert_gating_func": 1}, "expert_gating_func = 1 is not implemented"),
        ("nemotron_h", {"ssm__inner_size": 66}, "ssm.inner_size = 66 is not allowed: a multiple of ssm.time_step_rank"),
        ("nemotron_h", {"attention__scale": 0.5}, "does not know: nemotron_h_moe.attention.scale"),
        (
            "nemotron_h-dense",
            {"attention__layer_norm_epsilon": None},
            "has no .nemotron_h.attention.layer_norm_epsilon",
        ),
        ("mamba2", {"attention__head_count": 4}, "attention.head_count = 4 is not implemented: only 0"),
        ("mamba2", {"ssm__inner_size": 104}, "ssm.inner_size = 104 is not allowed: a multiple of embedding_length, 48"),
        ("qwen3_5_text", {"ssm__dt_b_c_rms": True}, "does not know: qwen35.ssm.dt_b_c_rms"),
        # A file of Granite 4.0's architecture in which half of each head is rotated is Bamba's.
        (
            "granitemoehybrid-mamba",
            {"rope__dimension_count": 6},
            "rope.dimension_count = 6 is not implemented: only 8, 4",
        ),
        ("granitemoehybrid-mamba", {"rope__dimension_count": 4}, "finetuned = False is not implemented: only True"),
        (
            "granitemoehybrid-mamba",
            {"rope__dimension_count": 4, "rope__scaling__finetuned": True},
            "embedding_scale = 3.0 is not implemented: only 1.0, 0.0",
        ),
    ],
)
def test_other_layers_are_refused(tmp_path, directories, name, changes, message):
    path = write(tmp_path / "x.gguf", name, directories(name), **changes)
    with pytest.raises(CheckpointError, match=message):
        load(path, program="eager", scheme="dense")


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"blk.0.ssm_conv1d.weight": (np.zeros((4, 64), np.float32), KIND.F32)}, r"ssm_conv1d.weight \[4, 64\] where"),
        ({"blk.0.ssm_in.weight": (np.zeros((4, 48), np.float32), KIND.F32)}, "1 unexpected: blk.0.ssm_in.weight"),
        ({"blk.0.ssm_a": (np.ones(4, np.float32), KIND.F32)}, r"blk.0.ssm_a: .* not below 0"),
        ({"blk.0.ssm_a": None}, "1 missing: blk.0.ssm_a"),
    ],
)
def test_other_tensors_of_states_are_refused(tmp_path, directories, stored, message):
    path = write(tmp_path / "x.gguf", "qwen3_5_text", directories("qwen3_5_text"), stored)
    with pytest.raises(CheckpointError, match=message):
        load(path, program="eager", scheme="dense")


def test_layers_that_predict_further_tokens_are_left_out(tmp_path, directories):
    """They attend, and stand behind the others."""
    extra = {f"blk.4.{name}.weight": (np.ones(48, np.float32), KIND.F32) for name in ("attn_norm", "nextn.enorm")}
    keys = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention__recurrent_layers": [True, True, True, False, False],
    }
    plain = write(tmp_path / "plain.gguf", "qwen3_5_text", directories("qwen3_5_text"))
    path = write(tmp_path / "x.gguf", "qwen3_5_text", directories("qwen3_5_text"), extra, **keys)
    assert read_config(open_checkpoint(path).config) == read_config(open_checkpoint(plain).config)
    assert open_checkpoint(path).shapes == open_checkpoint(plain).shapes


def test_of_nemotron_3_such_a_layer_attends_and_has_experts(tmp_path, directories):
    extra = {"blk.4.nextn.eh_proj.weight": (np.ones((48, 96), np.float32), KIND.F32)}
    keys = {"block_count": 5, "nextn_predict_layers": 1}
    keys |= {"attention__head_count_kv": [0, 0, 2, 0, 2], "feed_forward_length": [40, 0, 0, 40, 40]}
    plain = write(tmp_path / "plain.gguf", "nemotron_h", directories("nemotron_h"))
    path = write(tmp_path / "x.gguf", "nemotron_h", directories("nemotron_h"), extra, **keys)
    assert read_config(open_checkpoint(path).config) == read_config(open_checkpoint(plain).config)
    assert open_checkpoint(path).shapes == open_checkpoint(plain).shapes


def test_older_files_of_nemotron_3_tell_the_width_of_an_expert_by_its_matrices(tmp_path, directories):
    """feed_forward_length was the width of all chosen experts there."""
    keys = {"expert_feed_forward_length": None, "feed_forward_length": [80, 0, 0, 80]}
    path = write(tmp_path / "x.gguf", "nemotron_h", directories("nemotron_h"), **keys)
    assert read_config(open_checkpoint(path).config).expert_size == 40


def test_older_files_of_qwen3_next_have_one_matrix(tmp_path, directories):
    """As its modules have it; attn_qkv and attn_gate came later."""
    stored: dict[str, Any] = {}
    for label, tensor in load_file(directories("qwen3_next") / "model.safetensors").items():
        if label.endswith("in_proj_qkvz.weight"):
            begin = f"blk.{label.split('.')[2]}."
            stored |= {f"{begin}attn_qkv.weight": None, f"{begin}attn_gate.weight": None}
            stored[f"{begin}ssm_in.weight"] = tensor.numpy(), KIND.F32
    plain = write(tmp_path / "plain.gguf", "qwen3_next", directories("qwen3_next"))
    path = write(tmp_path / "x.gguf", "qwen3_next", directories("qwen3_next"), stored)
    assert len(open_checkpoint(path).shapes) == len(open_checkpoint(plain).shapes) - 3
    logits = [load(each, program="eager", scheme="dense", dtype="float32").logits(prompt(9)) for each in (plain, path)]
    assert torch.equal(*logits)


def test_older_files_have_an_interval_alone(tmp_path, directories):
    keys = {"attention__recurrent_layers": None}
    path = write(tmp_path / "x.gguf", "qwen3_5_text", directories("qwen3_5_text"), **keys)
    mixers = read_config(open_checkpoint(path).config).mixers
    assert [mixer is None for mixer in mixers] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lfm2-departures", "one without biases in its mixers, which llama.cpp requires"),
        ("qwen3_5_text", "ssm.inner_size = 48 is not implemented: only 32"),
        ("qwen3_next-departures", "one without a bias behind attention, which llama.cpp requires"),
        ("granitemoehybrid-departures", "one without biases in its mixers, which llama.cpp requires"),
        ("falcon_h1-departures", "one without a bias behind attention, which llama.cpp requires"),
        ("bamba-departures", "one without biases in its mixers, which llama.cpp requires"),
        ("nemotron_h", "it has no key for intermediate_size = 80, read as 40; expert_layers = "),
        ("nemotron_h-departures", "one without biases in its mixers, which llama.cpp requires"),
        ("nemotron_h-dense", "one with convolution biases, which llama.cpp requires"),
        ("mamba2-departures", "one without biases in its mixers, which llama.cpp requires"),
        ("lfm2_moe-departures", "norm_top_k = False, read as True; .*; router_scale = 1.5, read as 1.0"),
    ],
)
def test_what_llama_cpp_cannot_hold_is_refused(tmp_path, name, message):
    build(*TINY[name]).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        quantize(open_checkpoint(tmp_path / "model"), tmp_path / "x.gguf", Silent(), "none", head="none", export="gguf")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("falcon_h1", {"tie_word_embeddings": True}, "it has no key for embedding_multiplier = 3.0, read as 1.0; "),
        ("falcon_h1", {"mamba_rms_norm": True}, "norm_first=True"),
        (
            "falcon_h1",
            {"attention_bias": True, "attention_in_multiplier": 1.0},
            "one without a bias behind attention, ",
        ),
        ("nemotron_h", {"mlp_bias": True}, "one whose experts have no biases, which"),
        ("mamba2", {"time_step_limit": [0.5, 0.9]}, r"no key for mixers\[0\].dt_limits = \(0.5, 0.9\)"),
    ],
)
def test_so_is_what_the_models_of_its_converter_lack(tmp_path, name, changes, message):
    build(*numbers_of(name, **changes)).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        quantize(open_checkpoint(tmp_path / "model"), tmp_path / "x.gguf", Silent(), "none", head="none", export="gguf")
