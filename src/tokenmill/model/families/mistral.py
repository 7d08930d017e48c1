"""Mistral 7B: Llama with a sliding window."""

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES, read_shared

__all__ = ["FAMILY"]


def _read(reader: ConfigReader) -> ModelConfig:
    # An absent key means transformers' default of 4096, an explicit null means no window.
    window = reader.take("sliding_window", None if "sliding_window" in reader.config else 4096)
    return read_shared(reader, windows=(window,) * reader.count("num_hidden_layers"))


FAMILY = Family(_read, NAMES, prefix="model.", ignored=("layers.{i}.self_attn.rotary_emb.inv_freq",))
