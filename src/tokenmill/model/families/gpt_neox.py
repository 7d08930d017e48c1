"""GPT-NeoX: Pythia, GPT-NeoX-20B, Dolly. Attention and MLP read the same input; a part of each head is rotated."""

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.rope import read_rope
from tokenmill.value_reader import MAX_POSITIONS

__all__ = ["FAMILY"]

_NAMES = {
    "gpt_neox.embed_in.weight": "embedding.weight",
    "gpt_neox.layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    "gpt_neox.layers.{i}.attention.query_key_value{p}": "layers.{i}.attention.qkv{p} | heads_to_qkv",
    "gpt_neox.layers.{i}.attention.dense{p}": "layers.{i}.attention.out{p}",
    "gpt_neox.layers.{i}.post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    "gpt_neox.layers.{i}.mlp.dense_h_to_4h{p}": "layers.{i}.mlp.up{p}",
    "gpt_neox.layers.{i}.mlp.dense_4h_to_h{p}": "layers.{i}.mlp.down{p}",
    "gpt_neox.final_layer_norm{p}": "norm{p}",
    "embed_out.weight": "head.weight",
}


def _read(reader: ConfigReader) -> ModelConfig:
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    head_dim, context = (
        reader.head_dim(hidden, heads),
        reader.count("max_position_embeddings", 2048, maximum=MAX_POSITIONS),
    )
    bias, parallel = reader.flag("attention_bias", True), reader.flag("use_parallel_residual", True)
    config = ModelConfig(
        family=reader.family,
        vocab_size=reader.count("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.count("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.count("intermediate_size"),
        max_position_embeddings=context,
        norm="layer",
        norm_eps=reader.number("layer_norm_eps", 1e-5, maximum=1.0),
        activation=reader.text("hidden_act", "gelu"),
        gated_mlp=False,
        rope=read_rope(reader, head_dim, context, 10000.0, "rotary_emb_base", "rotary_pct", 0.25),
        residual="parallel" if parallel else "serial",
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
        tie_embeddings=reader.flag("tie_word_embeddings", False),
        eos_token_ids=reader.token_ids("eos_token_id"),
        dtype=reader.dtype(),
    )
    reader.done(harmless=("rope_theta",))  # written beside rotary_emb_base, which is the one that counts
    return config


# Buffers that old checkpoints carry: the causal mask and the rotary frequencies.
_IGNORED = tuple(f"gpt_neox.layers.{{i}}.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq"))
FAMILY = Family(_read, _NAMES, ignored=_IGNORED)
