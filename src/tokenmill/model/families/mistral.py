"""Mistral 7B: Llama with a sliding window."""

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES, read_shared

__all__ = ["FAMILY"]


def _read(reader: ConfigReader) -> ModelConfig:
    window = reader.window(4096)  # transformers' default
    return read_shared(reader, windows=(window,) * reader.count("num_hidden_layers", maximum=MAX_LAYERS))


FAMILY = Family(_read, NAMES, prefix="model.", ignored=("layers.{i}.self_attn.rotary_emb.inv_freq",))
