"""params.json, of Meta's and of Mistral's own layout, in the words of config.json.

Two facts that params.json leaves out are known of the models that were published so: the positions for which a model
was trained, and the scaling of its rope.
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief

# Limits of the programs that came with the models, and keys that tell nothing more.
_HARMLESS = ("max_batch_size", "max_seq_len", "model_parallel_size", "lora_args", "quantization_args", "causal")
_LLAMA_31 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
OTHERWISE = "give the same model in Hugging Face layout"
_SMALL = 3072  # the width up to which a Llama with scaled rope is 3.2, whose factor is 32


def read_params(values: Mapping[str, Any], where: str, vocab_size: int, has_head: bool) -> dict[str, Any]:
    """Read the config that params.json describes; CheckpointError for a key that is not known.

    vocab_size: rows of the embedding; the params.json of Meta's first models does not say it. has_head: whether there
    is a head.
    """
    reader = ValueReader(values, where, CheckpointError)
    dim, heads = reader.count("dim"), reader.count("n_heads")
    if dim % heads and "head_dim" not in values:
        raise reader.refuse("n_heads", heads, f"a divisor of dim = {dim}, where there is no head_dim")
    reader.expect("vocab_size", vocab_size, -1)
    theta, is_scaled = reader.number("rope_theta", 10000.0), reader.flag("use_scaled_rope", False)
    reader.expect("use_biases", False)
    experts = reader.inside("moe")
    config: dict[str, Any] = {
        "model_type": "mixtral" if experts.values else "mistral" if "head_dim" in values else "llama",
        "hidden_size": dim,
        "intermediate_size": _width(reader, dim),
        "num_hidden_layers": reader.count("n_layers", maximum=1 << 11),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.count("n_kv_heads", heads),
        "head_dim": reader.count("head_dim", dim // heads),
        "vocab_size": vocab_size,
        "rms_norm_eps": reader.number("norm_eps", maximum=1.0),
        "rope_theta": theta,
        "eos_token_id": None,  # which the tokenizer says
        "tie_word_embeddings": reader.flag("tied_embeddings", not has_head or (is_scaled and dim <= _SMALL)),
    }
    if experts.values:
        config["num_local_experts"] = experts.count("num_experts")
        config["num_experts_per_tok"] = experts.count("num_experts_per_tok")
        experts.refuse_unread(experts.values)
    if config["model_type"] != "llama":
        config["sliding_window"] = reader.count("sliding_window", None, maximum=MAX_POSITIONS)
    factor = reader.number("rope_scaling_factor", 32.0 if dim <= _SMALL else 8.0)
    if is_scaled:
        config["rope_scaling"] = {"rope_type": "llama3", "factor": factor, **_LLAMA_31}
    usual = 131072 if is_scaled else 8192 if theta == 500_000 else 16384 if theta == 1e6 else 4096
    if config["model_type"] != "llama":
        usual = 32768
    config["max_position_embeddings"] = reader.count("max_position_embeddings", usual, maximum=MAX_POSITIONS)
    if left := sorted(values.keys() - reader.read - set(_HARMLESS)):
        raise CheckpointError(f"{where} has keys that tokenmill does not know: {brief(left)}: {OTHERWISE}")
    return config


def _width(reader: ValueReader, dim: int) -> int:
    """Compute the width of an MLP as Meta does."""
    multiple, factor = reader.count("multiple_of", 256), reader.number("ffn_dim_multiplier", 1.0)
    width = int(factor * int(8 * dim / 3))
    return reader.count("hidden_dim", -(-width // multiple) * multiple)
