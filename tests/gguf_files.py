"""Tiny GGUF files, written from tiny random transformers models the way llama.cpp's converters write them.

`tiny` gives a model's config and its tensors as save_pretrained writes them; `write` turns them round as the converter
of that family does (https://github.com/ggml-org/llama.cpp/tree/master/conversion) and writes the file with the gguf
package. Rows are multiples of 32, and those of ffn_down of 256, so that they can be stored in every type. The
vocabulary is GPT-2's bytes and some merges.
"""

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from tests.tiny_models import config_of
from tokenmill.weights.gguf.header import TensorInfo, read_header
from tokenmill.weights.write.gguf_metadata import write_header

KIND = gguf.GGMLQuantizationType
F32 = KIND.F32
VOCABULARY = 281  # 256 bytes, 24 merges, one end of text
HEADS, KV_HEADS, EXPERTS, CONTEXT = 4, 2, 3, 128

LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_NEOX = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "head_dim")}
_GPT = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": HEADS, "n_positions": CONTEXT} | {
    key: LLAMA[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")
}

# name → (GGUF's architecture, transformers' model_type, config)
TINY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", LLAMA),
    "llama-tied": ("llama", "llama", LLAMA | {"tie_word_embeddings": True}),
    "llama-bias": ("llama", "llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", "llama", LLAMA | {"head_dim": 32}),
    "mistral": ("llama", "mistral", LLAMA | {"sliding_window": 7}),
    "mixtral": ("llama", "mixtral", LLAMA | {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", "qwen2", {key: value for key, value in LLAMA.items() if key != "head_dim"}),
    "qwen3": ("qwen3", "qwen3", LLAMA | {"head_dim": 32}),
    "gpt2": ("gpt2", "gpt2", _GPT),
    "gpt2-inner": ("gpt2", "gpt2", _GPT | {"n_inner": 160}),
    "gptneox": ("gptneox", "gpt_neox", _NEOX | {"rotary_pct": 0.5}),
    "gptneox-serial": ("gptneox", "gpt_neox", _NEOX | {"use_parallel_residual": False, "attention_bias": False}),
    "starcoder": ("starcoder", "gpt_bigcode", _GPT | {"multi_query": True}),
}

_WIDE = LLAMA | {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
WIDE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama-wide": ("llama", "llama", _WIDE),
    "llama-wide-tied": ("llama", "llama", _WIDE | {"tie_word_embeddings": True}),
    "mixtral-wide": ("llama", "mixtral", _WIDE | {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}),
}
"""Models all of whose rows are multiples of 256: see write_codes."""


def with_tensors(
    file: Path, target: Path, tensors: dict[str, Tensor], keys: dict[str, Any], without: str | tuple[str, ...] = ()
) -> Path:
    """The same file with more tensors, in float32, and other keys, without those whose value is []. without: begins the
    names of tensors that it lacks.
    """
    header = read_header(file)
    infos = sorted(header.tensors.values(), key=lambda info: info.offset)
    infos = [info for info in infos if not info.name.startswith(without)]
    stored, data = file.read_bytes()[header.data_offset :], b""
    for info in infos:
        data += stored[info.offset : info.offset + info.num_bytes] + bytes(-info.num_bytes % 32)
    end = len(data)
    for name, tensor in tensors.items():
        infos.append(TensorInfo(name, tuple(tensor.shape), F32, end, 4 * tensor.numel()))
        end += 4 * tensor.numel() + -4 * tensor.numel() % 32
    write_header(target, {key: value for key, value in (header.metadata | keys).items() if value != []}, infos)
    with target.open("ab") as out:
        out.write(bytes(-out.tell() % 32) + data)
        for tensor in tensors.values():
            numbers = tensor.detach().float().contiguous().numpy().tobytes()
            out.write(numbers + bytes(-len(numbers) % 32))
    return target


@cache
def tiny(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A tiny model as save_pretrained writes it: its config.json, and its tensors by the names they have on disk."""
    _, kind, numbers = (TINY | WIDE)[name]
    config = config_of(kind, numbers)
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as directory:
        torch.manual_seed(30)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.15)
        model.save_pretrained(directory)
        text = (Path(directory) / "config.json").read_text(encoding="utf-8")
        return json.loads(text), load_file(Path(directory) / "model.safetensors")


def write(
    path: Path,
    name: str,
    kind: gguf.GGMLQuantizationType = F32,
    *,
    metadata: dict[str, Any] | None = None,
    stored: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType] | None] | None = None,
    tokenizer: bool = True,
    split: int = 0,
) -> Path:
    """Write one tiny model, its matrices as `kind`.

    `metadata` is put over what the converter writes, keys of the architecture without its name, and `stored` over its
    tensors, as the bytes of a type; None leaves a key or a tensor out. split: tensors of each part, if there are to be
    several, x-00001-of-00003.gguf and so on for x.gguf.
    """
    arch, _, _ = (TINY | WIDE)[name]
    config, tensors = tiny(name)
    arrays = converted(arch, config, tensors)
    kinds = {label: kind if array.ndim > 1 else F32 for label, array in arrays.items()}
    data = {label: (gguf.quantize(array, kinds[label]), kinds[label]) for label, array in arrays.items()}
    pairs = _metadata(arch, config) | (vocabulary() if tokenizer else {}) | (metadata or {})
    writer = gguf.GGUFWriter(None, arch, split_max_tensors=split)
    for key, value in pairs.items():
        whole = key.startswith(("general.", "split.", "tokenizer."))
        if value is not None:
            ADD[type(value)](writer, key if whole else f"{arch}.{key}", value)
    for label, entry in (data | (stored or {})).items():
        if entry is not None:
            writer.add_tensor(label, entry[0], raw_dtype=entry[1])
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_codes(path: Path, name: str, kinds: Sequence[gguf.GGMLQuantizationType]) -> Path:
    """Write a model of WIDE whose matrices have the types in turn: random codes, or its numbers in floating point."""
    arrays, stored = converted("llama", *tiny(name)), {}
    for number, (label, array) in enumerate(arrays.items()):
        kind = kinds[number % len(kinds)]
        if array.ndim > 1 and kind not in HALVES:
            stored[label] = gguf.quantize(array, kind), kind
        elif array.ndim > 1 and "gate_inp" not in label:  # a router is small, and stays as it is
            stored[label] = _random_matrix(kind, array.shape, number), kind
    return write(path, name, stored=stored)


def _random_matrix(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random codes of numbers of about 1 / sqrt(inputs)."""
    spread = gguf.dequantize(random_rows(kind, 64, shape[-1]), kind).std() * np.sqrt(shape[-1])
    rows = random_rows(kind, int(np.prod(shape[:-1])), shape[-1], size=2.0 ** -np.round(np.log2(spread)), seed=seed)
    return rows.reshape(*shape[:-1], -1)


HALVES = {  # the bytes of a block at which a half float begins: a scale, a minimum
    **{kind: [0] for kind in (KIND.Q4_0, KIND.Q5_0, KIND.Q8_0, KIND.IQ4_NL, KIND.IQ4_XS)},
    **{kind: [0] for kind in (KIND.IQ1_S, KIND.IQ2_XXS, KIND.IQ3_XXS, KIND.IQ3_S)},
    **{kind: [0, 2] for kind in (KIND.Q4_1, KIND.Q5_1, KIND.Q4_K, KIND.Q5_K)},
    KIND.Q2_K: [80, 82],
    KIND.Q3_K: [108],
    KIND.Q6_K: [208],
    KIND.TQ1_0: [52],
    KIND.TQ2_0: [64],
    KIND.MXFP4: [],
}


def random_rows(
    kind: gguf.GGMLQuantizationType, num_rows: int, num_inputs: int, size: float = 1.0, seed: int = 0
) -> np.ndarray:
    """[num_rows, bytes] of random codes with finite scales of about `size`; those of MXFP4 are near 1 / 8 of it."""
    generator = np.random.default_rng(int(kind) + 100 * seed)
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (num_rows, num_inputs // block, num_bytes), np.uint8)
    for at in HALVES[kind]:
        numbers = (generator.normal(size=(*blocks.shape[:2], 1)) * size).astype(np.float16)
        blocks[:, :, at : at + 2] = numbers.view(np.uint8)
    if kind == KIND.MXFP4:
        blocks[:, :, 0] = generator.integers(122, 126, blocks.shape[:2]) + int(np.log2(size))
    return blocks.reshape(num_rows, -1)


def converted(arch: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors under GGUF's names, turned round as the converter does."""
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), 2)
    turned = {name: _turned(arch, config, name, tensor) for name, tensor in _stacked(tensors).items()}
    return {
        names.get_name(name, try_suffixes=(".weight", ".bias")): np.ascontiguousarray(tensor.numpy())
        for name, tensor in turned.items()
    }


def _stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mixtral's experts as one tensor per layer and matrix; everything else as it is."""
    whole = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(2):
        expert = f"model.layers.{layer}.block_sparse_moe.experts."
        for wide in ("w1", "w2", "w3") if expert + "0.w1.weight" in tensors else ():
            parts = [tensors[f"{expert}{number}.{wide}.weight"] for number in range(EXPERTS)]
            whole[f"layers.{layer}.feed_forward.experts.{wide}.weight"] = torch.stack(parts)
    return whole


def _turned(arch: str, config: dict[str, Any], name: str, tensor: Tensor) -> Tensor:
    if arch == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return tensor.transpose(1, 0)
    if arch == "gptneox" and "query_key_value" in name:
        by_head = tensor.reshape(config["num_attention_heads"], 3, -1, *tensor.shape[1:])
        return torch.cat([by_head[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
    return tensor


def _metadata(arch: str, config: dict[str, Any]) -> dict[str, Any]:
    """The metadata that set_gguf_parameters of each converter writes."""
    if arch in ("gpt2", "starcoder"):
        return {
            "block_count": config["n_layer"],
            "context_length": config["n_positions"],
            "embedding_length": config["n_embd"],
            "feed_forward_length": 4 * config["n_embd"],
            "attention.head_count": config["n_head"],
            "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        } | ({"attention.head_count_kv": 1} if arch == "starcoder" else {})
    pairs = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
    }
    if arch == "gptneox":
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        return pairs | {
            "rope.dimension_count": int(config["rope_parameters"]["partial_rotary_factor"] * head_dim),
            "use_parallel_residual": config["use_parallel_residual"],
            "attention.layer_norm_epsilon": config["layer_norm_eps"],
        }
    pairs |= {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    if config.get("head_dim"):
        pairs |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if arch == "llama":
        pairs |= {"vocab_size": config["vocab_size"], "rope.dimension_count": config["head_dim"]}
    if config["model_type"] == "mixtral":
        pairs |= {"expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"]}
    if config["model_type"] == "mistral":
        pairs |= {"attention.sliding_window": config["sliding_window"]}
    return pairs


def vocabulary() -> dict[str, Any]:
    """A byte-level vocabulary: end of text, every byte as GPT-2 spells it, and a few merges."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]
    pairs = "Ġ t,Ġ a,h e,i n,r e,o n,Ġt he,e r,Ġ s,a t,Ġ w,Ġ o,e n,Ġ c,i t,i s,a n,o r,e s,Ġ b,e d,Ġ f,in g,Ġ p"
    merges = pairs.split(",")
    tokens = ["<|endoftext|>", *letters, *(merge.replace(" ", "") for merge in merges)]
    assert len(tokens) == VOCABULARY
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (VOCABULARY - 1),  # 3 is CONTROL, 1 NORMAL
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


ADD = {
    bool: gguf.GGUFWriter.add_bool,
    int: lambda writer, key, value: (writer.add_int32 if value < 0 else writer.add_uint32)(key, value),
    float: gguf.GGUFWriter.add_float32,
    str: gguf.GGUFWriter.add_string,
    list: gguf.GGUFWriter.add_array,
}
