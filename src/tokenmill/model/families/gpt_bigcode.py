"""GPT-BigCode: SantaCoder and StarCoder. GPT-2 with multi-query attention and matrices stored [out, in]."""

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.gpt2 import IGNORED, read_gpt

__all__ = ["FAMILY"]

_NAMES = {
    "wte.weight": "embedding.weight",
    "wpe.weight": "position_embedding.weight",
    "h.{i}.ln_1{p}": "layers.{i}.attention_norm{p}",
    "h.{i}.attn.c_attn{p}": "layers.{i}.attention.qkv{p} | bigcode_qkv",
    "h.{i}.attn.c_proj{p}": "layers.{i}.attention.out{p}",
    "h.{i}.ln_2{p}": "layers.{i}.mlp_norm{p}",
    "h.{i}.mlp.c_fc{p}": "layers.{i}.mlp.up{p}",
    "h.{i}.mlp.c_proj{p}": "layers.{i}.mlp.down{p}",
    "ln_f{p}": "norm{p}",
    "lm_head.weight": "head.weight",
}


def _read(reader: ConfigReader) -> ModelConfig:
    multi_query = reader.flag("multi_query", True)
    # Choices of precision only: scores are float32 here.
    for key in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        reader.flag(key, True)
    for key in ("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_batch_size"):
        reader.take(key, None)  # of a long gone implementation
    reader.take("max_sequence_length", None)
    reader.take("num_key_value_heads", None)  # repeats multi_query
    departures = {"num_kv_heads": 1} if multi_query else {}
    return read_gpt(reader, "gelu_pytorch_tanh", **departures)


FAMILY = Family(_read, _NAMES, prefix="transformer.", ignored=IGNORED)
