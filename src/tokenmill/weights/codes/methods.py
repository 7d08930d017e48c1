"""The method of a quantised directory whose config.json does not name it as transformers does, and MLX's own names of
tensors.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.text.tokenizer import read_json
from tokenmill.weights.plain import PlainCheckpoint

_STACK = re.compile(
    r"(.+\.)(?:switch_mlp|experts\.switch_glu)\.(gate_proj|up_proj|down_proj)\.(weight|scales|biases|global_scale)"
)
_OF_STACK = re.compile(_STACK.pattern + r"\[(\d+)\]")
# Families whose tensors mlx-lm names otherwise: its beginning of a name → Hugging Face's, the longest first.
_OF_FAMILY: dict[str, dict[str, str]] = {
    "gpt2": {"model.": "transformer."},
    "gpt_neox": {"model.embed_out": "embed_out", "model.h.": "gpt_neox.layers.", "model.": "gpt_neox."},
}
_OF_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# AutoAWQ's first names of settings → transformers' names.
_OF_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}
# The rope parameters that AutoRound's export to MLX leaves in config.json itself.
_OF_ROPE = """rope_type factor low_freq_factor high_freq_factor original_max_position_embeddings attention_factor
    beta_fast beta_slow mscale mscale_all_dim truncate short_factor long_factor short_mscale long_mscale""".split()


def name_method(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Give the config of the directory at `path` a quantization_config that names its method.

    AutoGPTQ and AutoAWQ once wrote a file of their own beside config.json. MLX calls the key "quantization", and
    AutoRound's exports to MLX have both keys.
    """
    settings = config.get("quantization_config")
    if isinstance(mlx := config.get("quantization"), dict) and (settings in (None, mlx) or _packs_as_mlx(settings)):
        left = {key: value for key, value in config.items() if key != "quantization"}
        return _with_rope(left) | {"quantization_config": _of_mlx(mlx, config)}
    if isinstance(settings, dict) and "quant_method" not in settings and {"group_size", "bits"} <= settings.keys():
        return _with_rope(config) | {"quantization_config": _of_mlx(settings, config)}  # MLX's, without its first name
    if settings is None and (beside := path / "quantize_config.json").is_file():
        return config | {"quantization_config": {"quant_method": "gptq", **read_json(beside)}}
    if settings is None and (beside := path / "quant_config.json").is_file():
        named = {_OF_AWQ.get(key, key): value for key, value in read_json(beside).items()}
        return config | {"quantization_config": {"quant_method": "awq", **named}}
    return config


def name_tensors(plain: PlainCheckpoint) -> None:
    """Show MLX's tensors under the names of Hugging Face's files, and the stacks in which it has the experts of a layer
    as single experts.
    """
    for name in [name for name in plain.shapes if _own_name(name, plain.config) != name]:
        plain.rename(name, _own_name(name, plain.config))
    plain.unstack(_STACK, "", scalars=True)
    for name in list(plain.shapes):
        if found := _OF_STACK.fullmatch(name):
            block, matrix, part, number = found.groups()
            is_mixtral = block.endswith("block_sparse_moe.")
            plain.rename(name, f"{block}experts.{number}.{_OF_MIXTRAL[matrix] if is_mixtral else matrix}.{part}")


def _packs_as_mlx(settings: Any) -> bool:
    return isinstance(settings, dict) and str(settings.get("packing_format")).rpartition(":")[2] == "mlx"


def _with_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Move the rope parameters that AutoRound left at the top of the config under `rope_scaling`."""
    config = {key: _with_rope(value) if key == "text_config" and isinstance(value, dict) else value
              for key, value in config.items()}  # fmt: skip
    if "rope_type" not in config or config.get("rope_parameters") or config.get("rope_scaling"):
        return config
    given = {key: config.pop(key) for key in _OF_ROPE if key in config}
    return config if given == {"rope_type": "default"} else config | {"rope_scaling": given}


def _own_name(name: str, config: Mapping[str, Any]) -> str:
    """Find Hugging Face's name of a tensor or module of an MLX directory."""
    begins = _OF_FAMILY.get(str(config.get("model_type")), {})
    found = next((begin for begin in begins if name.startswith(begin)), None)
    return name if found is None else begins[found] + name.removeprefix(found)


def _of_mlx(settings: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Put the settings of single modules under a key of their own, and name the method."""
    modules = {key: value for key, value in settings.items() if isinstance(value, (dict, bool))}
    rest = {key: value for key, value in settings.items() if key not in modules}
    named = {_own_name(key, config): value for key, value in modules.items()}
    return {**rest, "modules": named, "quant_method": "mlx"}
