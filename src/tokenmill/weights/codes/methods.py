"""The method of a quantised directory, where its config.json does not name it as transformers does, and MLX's own names
of tensors.
"""

import re
from pathlib import Path
from typing import Any

from tokenmill.text.tokenizer import read_json
from tokenmill.weights.plain import PlainCheckpoint

_STACK = re.compile(r"(.+\.)switch_mlp\.(gate_proj|up_proj|down_proj)\.(weight|scales|biases)")
_OF_STACK = re.compile(_STACK.pattern + r"\[(\d+)\]")
_OF_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# AutoAWQ's first words for what transformers calls otherwise.
_OF_AWQ = {"w_bit": "bits", "q_group_size": "group_size"}


def name_method(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of the directory at `path`, with a quantization_config that names its method.

    AutoGPTQ and AutoAWQ once wrote a file of their own beside config.json, and MLX calls it "quantization".
    """
    settings = config.get("quantization_config")
    if isinstance(mlx := config.get("quantization"), dict) and (settings is None or settings == mlx):
        return {key: value for key, value in config.items() if key != "quantization"} | {
            "quantization_config": _of_mlx(mlx)
        }
    if isinstance(settings, dict) and "quant_method" not in settings and {"group_size", "bits"} <= settings.keys():
        return config | {"quantization_config": _of_mlx(settings)}  # MLX's, without its first name
    if settings is None and (beside := path / "quantize_config.json").is_file():
        return config | {"quantization_config": {"quant_method": "gptq", **_object(beside)}}
    if settings is None and (beside := path / "quant_config.json").is_file():
        named = {_OF_AWQ.get(key, key): value for key, value in _object(beside).items()}
        return config | {"quantization_config": {"quant_method": "awq", **named}}
    return config


def split_experts(plain: PlainCheckpoint) -> None:
    """Show the stacks in which MLX has the experts of a layer as the experts that Hugging Face's files have."""
    plain.unstack(_STACK, "")
    for name in list(plain.shapes):
        if found := _OF_STACK.fullmatch(name):
            block, matrix, part, number = found.groups()
            is_mixtral = block.endswith("block_sparse_moe.")
            plain.rename(name, f"{block}experts.{number}.{_OF_MIXTRAL[matrix] if is_mixtral else matrix}.{part}")


def _of_mlx(settings: dict[str, Any]) -> dict[str, Any]:
    """MLX's settings, with those of single modules under a key of their own."""
    modules = {key: value for key, value in settings.items() if isinstance(value, (dict, bool))}
    rest = {key: value for key, value in settings.items() if key not in modules}
    return {**rest, "modules": modules, "quant_method": "mlx"}


def _object(file: Path) -> dict[str, Any]:
    return dict(read_json(file))
