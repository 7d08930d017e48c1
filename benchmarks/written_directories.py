"""Whole directories of tiny models as other programs quantise and write them, with the values that these read back.

    python benchmarks/written_directories.py auto-round FOLDER        # auto-round 0.16.1
    python benchmarks/written_directories.py mlx FOLDER               # mlx-lm 0.32.2, mlx[cpu] 0.32.4
    python benchmarks/written_directories.py bitsandbytes FOLDER      # bitsandbytes 0.50.2
    python benchmarks/written_directories.py llm-compressor FOLDER    # llmcompressor 0.14.0.1, by itself
    python benchmarks/written_directories.py record FOLDER tests/weights/codes/written.json

The last step needs all of these but llm-compressor, and compressed-tensors 0.20.0, transformers 5.24.0.
tests/weights/codes/test_written.py reads the file: for each directory its config.json, the tensors, the digest of each
matrix as float32 (as bfloat16 where its writer computes in it), and logits of the model that has these values.
"""

import base64
import hashlib
import json
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY, IDS = 64, [5, 9, 20, 31, 47, 50, 3, 42, 18, 60, 21]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64, "tie_word_embeddings": False}
KINDS = {
    "llama": SIZES,
    "qwen3_moe": SIZES | {"hidden_size": 64, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64},
    "wide_gpt2": {"n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 64},
}


def source(folder, kind):
    """A directory of random weights with a tokenizer of words."""
    path = folder / f"source-{kind}"
    if path.exists():
        return path
    family = kind.removeprefix("wide_")
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCABULARY}
    config = transformers.AutoConfig.for_model(family, **KINDS[kind], **tokens)
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    for name, each in model.named_parameters():
        torch.nn.init.normal_(each, mean=float(each.dim() == 1 and name.endswith("weight")), std=0.2)
    model.bfloat16().save_pretrained(path)
    said = json.loads((path / "config.json").read_text())
    said |= {"gpt2": {"n_ctx": 64}, "qwen3_moe": {"num_experts": 2, "rope_theta": 10000.0}}.get(family, {})
    (path / "config.json").write_text(json.dumps(said))  # keys that mlx-lm needs
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=_words(words), pad_token="<pad>", unk_token="<pad>")
    made.save_pretrained(path)
    return path


def _words(words):
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def tokens():
    made = torch.randint(3, VOCABULARY, (4, 1, 32), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in made]


# ---- the writers


def auto_round(folder):
    from auto_round import AutoRound

    def write(name, kind="llama", scheme="W4A16", form="auto_round", iters=0, **more):
        data = {} if more.get("model_free") else {"dataset": tokens(), "nsamples": 4, "seqlen": 32, "batch_size": 2}
        data |= {} if more.get("model_free") else {"disable_model_free": True}
        how = {"scheme": scheme, "iters": iters, "device_map": "cpu", "enable_torch_compile": False}
        tool = AutoRound(str(source(folder, kind)), **how, **data, **more)
        tool.quantize_and_save(output_dir=str(folder / "part"), format=form)
        (found,) = [each.parent for each in (folder / "part").rglob("config.json")]
        shutil.move(found, folder / name)
        shutil.rmtree(folder / "part", ignore_errors=True)

    by, free, uneven = {"group_size": 32}, {"model_free": True}, {"sym": False}
    mixed = {
        "layer_config": {"model.layers.0.mlp.down_proj": {"bits": 8}, "model.layers.0.self_attn.q_proj": {"bits": 16}}
    }
    write("ar-w4-mf", **by, **free)
    write("ar-w4-asym-mf", **by, **free, **uneven)
    write("ar-w2", scheme="W2A16", **by)
    write("ar-w3-asym", scheme="W3A16", **by, **uneven)
    write("ar-w5-asym", scheme="W5A16", **by, **uneven)
    write("arawq-w6", scheme="W6A16", form="auto_round:auto_awq", **by, **uneven)
    write("ar-w4-asym", **by, **uneven)
    write("ar-w8", scheme="W8A16", **by)
    write("ar-w4-mixed", **by, **mixed)
    write("ar-w4-head", quant_lm_head=True, **by)
    write("ar-w4-tuned", iters=1, **by)
    write("ar-w4-gpt2", "gpt2", **by)
    write("gptq-w4-gpt2", "gpt2", form="auto_gptq", **by)
    write("gptq-w4-mixed", form="auto_gptq", **by, **mixed)
    write("awq-w4", form="auto_awq", **by)
    write("awq-w4-asym", form="auto_awq", **by, **uneven)
    for scheme in ("MXFP4", "MXFP8", "NVFP4", "MXINT4", "FPW8A16", "FP8_STATIC", "FP8_BLOCK"):
        write(f"ar-{scheme.lower()}", scheme=scheme)
    write("ar-mxfp4-mf", scheme="MXFP4", **free)
    write("fp8-block", scheme="FP8_BLOCK", form="fp8")
    for scheme in ("MXFP4", "MXFP8", "NVFP4", "FP8_STATIC", "INT8"):
        write(f"llmc-{scheme.lower()}", scheme=scheme, form="llm_compressor")
    write("llmc-w4-mixed", form="llm_compressor", **by, **mixed)
    write("llmc-w4-gpt2", "gpt2", form="llm_compressor", **by)
    write("mlx-w4", form="mlx", **by)
    write("armlx-w4", form="auto_round:mlx", **by)
    write("mlx-w4-gpt2", "gpt2", form="mlx", **by)


def mlx(folder):
    from mlx_lm import convert

    plain = source(folder, "gpt2") / "model.safetensors"  # as GPT-2 was published, without "transformer."
    save_file({name.removeprefix("transformer."): each for name, each in load_file(plain).items()}, plain)
    for mode in ("mxfp4", "mxfp8", "nvfp4"):
        convert(str(source(folder, "llama")), str(folder / f"mlxlm-{mode}"), quantize=True, q_mode=mode)
    convert(str(source(folder, "qwen3_moe")), str(folder / "mlxlm-qwen3moe-nvfp4"), quantize=True, q_mode="nvfp4")
    convert(str(source(folder, "gpt2")), str(folder / "mlxlm-affine2-gpt2"), quantize=True, q_group_size=32, q_bits=4)


def bitsandbytes(folder):
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    for name, kind, how in (("int8-gpt2", "gpt2", {"load_in_8bit": True}), ("nf4-gpt2", "wide_gpt2", four)):
        config = transformers.BitsAndBytesConfig(**how)
        auto = transformers.AutoModelForCausalLM
        model = auto.from_pretrained(source(folder, kind), quantization_config=config, device_map="cpu")
        model.save_pretrained(folder / f"bnb-{name}")


def llm_compressor(folder):
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    def write(name, data=False, **how):
        model = transformers.AutoModelForCausalLM.from_pretrained(source(folder, "llama"), dtype=torch.bfloat16)
        rows = {key: [each[key][0].tolist() for each in tokens()] for key in ("input_ids", "attention_mask")}
        more = {"dataset": Dataset.from_dict(rows), "num_calibration_samples": 4} if data else {}
        how = {"ignore": ["lm_head"]} | how
        oneshot(model=model, tokenizer=str(source(folder, "llama")), recipe=QuantizationModifier(**how), **more)
        model.save_pretrained(folder / name, save_compressed=True)

    def group(targets, bits, **more):
        return {
            "targets": targets,
            "weights": {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32} | more,
        }

    for scheme in ("FP8_DYNAMIC", "NVFP4A16", "MXFP8"):
        write(f"lc-{scheme.lower()}", targets=["Linear"], scheme=scheme)
    write("lc-w4-asym", config_groups={"group_0": group(["Linear"], 4, symmetric=False)})
    write("lc-embedding", config_groups={"group_0": group(["Linear", "Embedding"], 4)}, ignore=[])
    rows = {"strategy": "channel", "group_size": None}
    both = {"group_0": group(["re:.*self_attn.*", "re:.*mlp.*"], 4), "group_1": group(["re:.*down_proj"], 8, **rows)}
    write("lc-overlap", config_groups=both)
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    write("lc-fp8-kv", data=True, targets=["Linear"], scheme="FP8", kv_cache_scheme=cache)


# ---- what the writers read back


def wide(tensor):
    """In float32: the libraries compute in the type of the scales, which rounds values again."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def of_auto_round(path, settings):
    """By AutoRound's modules, of a copy of the directory with other settings."""
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(path, copied, dirs_exist_ok=True)
        config = json.loads((path / "config.json").read_text()) | {"quantization_config": settings}
        (Path(copied) / "config.json").write_text(json.dumps(config))
        (Path(copied) / "quantization_config.json").unlink(missing_ok=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(copied, device_map="cpu", dtype=torch.float32)
    values = {}
    for name, module in model.named_modules():
        if hasattr(module, "dequant_weight_online"):
            values[f"{name}.weight"] = module.dequant_weight_online().float()
        elif hasattr(module, "qweight"):
            torch.nn.Module.float(module)
            module.bias = None
            values[f"{name}.weight"] = module(torch.eye(module.infeatures)).t()
    return values


def having(tensors, part):
    return [name.removesuffix(f".{part}") for name in tensors if name.endswith(f".{part}")]


def of_mlx(path, config, tensors):
    import mlx.core as mx
    import numpy as np

    own, values = config["quantization"], {}
    stored = {
        name: each.astype(mx.float32) if each.dtype in (mx.float16, mx.bfloat16) else each
        for name, each in mx.load(str(path / "model.safetensors")).items()
    }
    for name in having(tensors, "scales"):
        found = own[name] if isinstance(own.get(name), dict) else own
        how = {key: found[key] for key in ("group_size", "bits", "mode") if key in found}
        parts = [stored[f"{name}.{part}"] for part in ("weight", "scales", "biases") if f"{name}.{part}" in stored]
        values[f"{name}.weight"] = torch.from_numpy(np.array(mx.dequantize(*parts, **how, dtype=mx.float32)))
    return values


def of_awq(path, config, tensors):
    from auto_round.export.export_to_awq.utils import dequantize_gemm

    settings, values = config["quantization_config"], {}
    for name in having(tensors, "qweight"):
        parts = (wide(tensors[f"{name}.{part}"]) for part in ("qweight", "qzeros", "scales"))
        values[f"{name}.weight"] = dequantize_gemm(*parts, settings["bits"], settings["group_size"]).t()
    return values


def of_compressed(path, config, tensors):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.quantization.lifecycle import apply_quantization_config

    read, values = QuantizationConfig.model_validate(config["quantization_config"]), {}
    shown = transformers.AutoConfig.from_pretrained(path)
    del shown.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(shown)
    apply_quantization_config(model, read)
    for name, module in model.named_modules():
        scheme, begin = getattr(module, "quantization_scheme", None), f"{name}."
        if scheme is not None and f"{name}.weight_scale" in tensors:
            parts = {key.removeprefix(begin): wide(each) for key, each in tensors.items() if key.startswith(begin)}
            form = str(getattr(scheme.format, "value", scheme.format) or read.format)
            done = BaseCompressor.get_value_from_registry(form).decompress(parts, scheme)
            values[f"{name}.weight"] = done["weight"].float()
    return values


def of_bitsandbytes(path, config, tensors):
    from bitsandbytes import functional

    values = {}
    for name in having(tensors, "SCB"):
        parts = tensors[f"{name}.weight"], tensors[f"{name}.SCB"]
        values[f"{name}.weight"] = functional.int8_vectorwise_dequant(*parts)
    for name in [name.partition(".quant_state")[0] for name in tensors if ".quant_state" in name]:
        parts = {key: each for key, each in tensors.items() if key.startswith(f"{name}.")}
        state = functional.QuantState.from_dict(parts, device="cpu")
        state.dtype = torch.float32
        values[name] = functional.dequantize_4bit(tensors[name], state)
    return values


def of_fp8(path, config, tensors):
    """A scale for each row, or one for all: transformers reads such directories in bfloat16 alone."""
    values = {}
    for part in ("weight_scale", "weight_scale_inv"):
        for name in having(tensors, part):
            scale = wide(tensors[f"{name}.{part}"]).view(-1, 1)
            values[f"{name}.weight"] = tensors[f"{name}.weight"].float() * scale
    return values


def of_gptq(path, config, tensors):
    """By AutoRound; transformers reads the same tensors by optimum."""
    extra = {"model.layers.0.mlp.down_proj": {"bits": 8}, "model.layers.0.self_attn.q_proj": {"bits": 16}}
    settings = {key: value for key, value in config["quantization_config"].items() if key != "dynamic"}
    mixed = {"extra_config": extra} if "dynamic" in config["quantization_config"] else {}
    return of_auto_round(
        path, settings | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"} | mixed
    )


def values_of(path, config, tensors):
    """The values of matrices as the writer's own functions read them, by the names of their tensors in the file."""
    settings = config.get("quantization_config", {})
    methods = {"awq": of_awq, "compressed-tensors": of_compressed, "bitsandbytes": of_bitsandbytes, "gptq": of_gptq}
    if "quantization" in config:
        return of_mlx(path, config, tensors)
    if settings["quant_method"] in methods:
        return methods[settings["quant_method"]](path, config, tensors)
    if settings["data_type"] == "fp":
        return of_fp8(path, config, tensors)
    if settings["packing_format"] == "auto_round:auto_awq":
        return of_awq(path, config, tensors)
    return of_auto_round(path, settings)


def logits(config, values):
    """The last row of a plain model with these values, by transformers."""
    shown = {
        key: value for key, value in config.items() if key not in ("quantization", "quantization_config", "rope_type")
    }
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**shown), attn_implementation="eager"
    ).float()
    own, left = dict(model.named_parameters()), set(values)
    for name, parameter in own.items():
        stem = name.removeprefix("transformer.")
        found = next((each for each in (name, stem, f"model.{stem}") if each in values), None)
        if found is None and name == "model.layers.0.mlp.experts.gate_up_proj":
            parts = [f"model.layers.0.mlp.switch_mlp.{part}_proj.weight" for part in ("gate", "up")]
            parameter.data, found = torch.cat([values[part] for part in parts], 1), parts[1]
            left.discard(parts[0])
        elif found is None:
            found = "model.layers.0.mlp.switch_mlp.down_proj.weight"
            parameter.data = values[found]
        else:
            turned = ".c_" in name and parameter.dim() == 2 and found in values.coded
            parameter.data = values[found].t() if turned else values[found]
        left.discard(found)
    assert not {name for name in left if not name.endswith("lm_head.weight")}, left
    with torch.no_grad():
        return model.eval()(torch.tensor([IDS])).logits[0, -1].tolist()


class Values(dict):
    """Values by name; `coded`: those that were codes."""

    coded: frozenset = frozenset()


def record(folder, file):
    made, blobs = {}, {}
    for path in sorted(
        each.parent for each in folder.glob("*/config.json") if not each.parent.name.startswith("source-")
    ):
        config, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
        coded = values_of(path, config, tensors)
        floats = {
            name: wide(each) for name, each in tensors.items() if each.is_floating_point() and each.element_size() > 1
        }
        beside = ("scales", "biases", "_scale", "_scale_inv", "global_scale", "absmax", "quant_map", "SCB")
        values = Values({name: each for name, each in floats.items() if not name.endswith(beside)} | coded)
        values.coded = frozenset(coded)
        in_half = "nvfp4" in path.name and not path.name.startswith("mlx")
        digests = {}
        for name, each in coded.items():
            shown = (each.bfloat16() if in_half else each).float().contiguous() + 0.0
            digests[name] = hashlib.sha256(shown.detach().numpy().tobytes()).hexdigest()
        listed = {}
        for name, each in tensors.items():
            raw = each.contiguous().flatten().view(torch.uint8).numpy().tobytes() if each.numel() else b""
            key = hashlib.sha256(raw).hexdigest()[:12]
            blobs[key] = base64.b64encode(zlib.compress(raw, 9)).decode()
            listed[name] = [str(each.dtype).removeprefix("torch."), list(each.shape), key]
        last = [round(number, 6) for number in logits(config, values)]
        made[path.name] = {"config": config, "tensors": listed, "digests": digests, "in_half": in_half, "logits": last}
        print(path.name, len(digests))
    Path(file).write_text(json.dumps({"blobs": blobs, "directories": made}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    verb, given, *rest = sys.argv[1:]
    Path(given).mkdir(exist_ok=True)
    globals()[verb.replace("-", "_")](Path(given), *rest)
