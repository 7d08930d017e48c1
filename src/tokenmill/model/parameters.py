"""How many parameters a model has, and in which matrices, by arithmetic alone."""

from typing import NamedTuple

from tokenmill.model.config import ModelConfig

__all__ = ["MatrixShape", "count_biases", "count_parameters", "matrices"]


def count_parameters(model: ModelConfig) -> dict[str, int]:
    """Parameters by part; a head that is tied to the embedding counts once, there."""
    hidden, layers, wide = model.hidden_size, model.num_layers, model.intermediate_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = hidden * (q + 2 * kv) + q * hidden
    attention += model.qkv_bias * (q + 2 * kv) + model.o_bias * hidden + model.qk_norm * 2 * model.head_dim
    ups = 2 if model.gated_mlp else 1
    mlp = (ups + 1) * hidden * wide + model.mlp_bias * (ups * wide + hidden)
    experts = model.num_experts * (mlp + hidden)  # a row of the router for each
    per_norm = hidden * (1 if model.norm == "rms" else 2)
    return {
        "embedding": model.vocab_size * hidden,
        "positions": model.max_position_embeddings * hidden if model.positions == "learned" else 0,
        "attention": layers * attention,
        "mlp": layers * (experts if model.num_experts else mlp),
        "norms": (2 * layers + 1) * per_norm,
        "head": 0 if model.tie_embeddings else model.vocab_size * (hidden + model.head_bias),
    }


class MatrixShape(NamedTuple):
    """`times` matrices of [outputs, inputs] that play the same role."""

    role: str
    outputs: int
    inputs: int
    times: int


def matrices(model: ModelConfig) -> list[MatrixShape]:
    """Every matrix that a token is multiplied with, a tied head among them."""
    hidden, layers, wide, ups = model.hidden_size, model.num_layers, model.intermediate_size, 1 + model.gated_mlp
    experts = layers * max(model.num_experts, 1)
    shapes = [
        MatrixShape("qkv", (model.num_heads + 2 * model.num_kv_heads) * model.head_dim, hidden, layers),
        MatrixShape("out", hidden, model.num_heads * model.head_dim, layers),
        MatrixShape("up", ups * wide, hidden, experts),
        MatrixShape("down", hidden, wide, experts),
        MatrixShape("head", model.vocab_size, hidden, 1),
    ]
    return shapes + ([MatrixShape("router", model.num_experts, hidden, layers)] if model.num_experts else [])


def count_biases(model: ModelConfig) -> int:
    """Entries of the biases of all those matrices."""
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim * model.qkv_bias
    mlp = ((1 + model.gated_mlp) * model.intermediate_size + model.hidden_size) * model.mlp_bias
    per_layer = qkv + model.hidden_size * model.o_bias + mlp * max(model.num_experts, 1)
    return model.num_layers * per_layer + model.vocab_size * model.head_bias
