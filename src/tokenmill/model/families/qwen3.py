"""Qwen 3: no biases, a norm on every query and key head, and a head_dim of its own."""

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES, read_shared
from tokenmill.model.families.qwen2 import read_windows

__all__ = ["FAMILY"]

_NAMES = {
    **NAMES,
    "layers.{i}.self_attn.q_norm.weight": "layers.{i}.attention.q_norm.weight",
    "layers.{i}.self_attn.k_norm.weight": "layers.{i}.attention.k_norm.weight",
}


def _read(reader: ConfigReader) -> ModelConfig:
    bias = reader.flag("attention_bias", False)
    head_dim = reader.count("head_dim", 128)
    windows = read_windows(reader)
    return read_shared(reader, qkv_bias=bias, o_bias=bias, qk_norm="head", head_dim=head_dim, windows=windows)


FAMILY = Family(_read, _NAMES, prefix="model.")
