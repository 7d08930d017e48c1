"""The features of a model that not every decoder has, by name: `tokenmill info` lists them."""

from tokenmill.cache.spec import StateSpec
from tokenmill.model.description import DecoderDescription
from tokenmill.model.mixture import mixtures_of


def states_of(decoder: DecoderDescription) -> list[StateSpec]:
    """List the states of each layer that keeps states."""
    return [kept for kept in decoder.keeps if isinstance(kept, StateSpec) and kept.shapes]


def features_of(decoder: DecoderDescription) -> frozenset[str]:
    """Name the departures from a plain decoder: pre-norm, one rope, full attention, an MLP in each layer."""
    layers, mixtures, attentions = decoder.layers, mixtures_of(decoder), decoder.attentions
    normed = [block for block in attentions if block.qk_norms]
    qk_norms = [norm for block in normed for norm in block.qk_norms]
    mlps = [mlp for layer in layers for mlp in layer.mlps]
    found = {
        "layers that keep a state": any(state.num_bytes for state in states_of(decoder)),
        "layers without a mixer or without an MLP": not all(layer.mixes and layer.mlp for layer in layers),
        "latent attention": any(mixer.name == "latent" for layer in layers for mixer in layer.mixers),
        "gate on the output of attention": any(block.gated or "gate" in block.matrices for block in attentions),
        "experts between two matrices": any(mixture.latent is not None for mixture in mixtures),
        "norm of embeddings": decoder.embedding_norm is not None,
        "norms of layers that differ from the last norm": decoder.config.layer_norms is not None,
        "products within bounds": any(matrix.clip is not None for matrix in decoder.matrices),
        "embedding multiplier": decoder.config.embedding_multiplier != 1.0,
        "several mixers in a layer": any(len(layer.mixers) > 1 for layer in layers),
        "multipliers of products": any(matrix.is_scaled for matrix in decoder.matrices),
        "residual multiplier": any(layer.multiplier != 1.0 for layer in layers),
        "logit multiplier": decoder.config.logit_multiplier != 1.0,
        "norm after attention or MLP": any(layer.after is not None for layer in layers),
        "attention or MLP without a norm before it": any(layer.before is None for layer in layers),
        "one norm for attention and MLP": any(layer.shared_norm for layer in layers),
        "norm with unit offset": any(norm.unit_offset for norm in (decoder.norm, *(decoder.config.layer_norms or ()))),
        "norm without a weight": not all(norm.weight for norm in (decoder.norm, *qk_norms)),
        "rope that differs from layer to layer": len({block.rope for block in attentions}) > 1,
        "query heads that differ from layer to layer": len({block.num_heads for block in attentions}) > 1,
        "kv heads that differ from layer to layer": len({block.num_kv_heads for block in attentions}) > 1,
        "head widths that differ from layer to layer": len({block.head_dim for block in attentions}) > 1,
        "norm over all heads of q and k": any(not block.norms_heads for block in normed),
        "LayerNorm of q and k": any(norm.kind == "layer" for norm in qk_norms),
        "norms of q and k with weights for each head": any(norm.heads > 1 for norm in qk_norms),
        "norms of q and k after rope": any(block.norms_after_rope for block in normed),
        "attention window": any(block.shape.window is not None for block in attentions),
        "attention softcap": any(block.shape.softcap is not None for block in attentions),
        "logit softcap": decoder.config.logit_softcap is not None,
        "norm of q and k": bool(normed),
        "mixture of experts": bool(mixtures),
        "parallel attention and MLP": any(layer.parallel for layer in layers),
        "learned positions": decoder.config.positions == "learned",
        "part of each head rotated": any(
            block.rope is not None and block.rope.dim < block.head_dim for block in attentions
        ),
        "attention sinks": any(block.shape.sinks for block in attentions),
        "attention temperature by position": any(block.temperature is not None for block in attentions),
        "clamped SwiGLU": any(mlp.swiglu is not None for mlp in mlps),
        "learned activation": any(mlp.act_parameters for mlp in mlps),
        "experts in some layers only": 0 < len(mixtures) < len(layers),
        "shared experts": any(mixture.shared is not None for mixture in mixtures),
        "sigmoid scores of experts": any(mixture.scores == "sigmoid" for mixture in mixtures),
        "correction of a router's scores": any(mixture.correction for mixture in mixtures),
        "groups of experts": any(mixture.groups is not None for mixture in mixtures),
        "weights of experts on their inputs": any(mixture.on_inputs for mixture in mixtures),
        "experts within a margin": any(mixture.margin is not None for mixture in mixtures),
        "scaled weights of experts": any(mixture.scale != 1.0 for mixture in mixtures),
        "bias on a router": any(mixture.router.bias for mixture in mixtures),
        "biases within a mixture of experts": any(m.bias for mixture in mixtures for m in mixture.expert.matrices),
    }
    rarities = {rarity for layer in layers for rarity in layer.rarities}
    return frozenset(name for name, there in found.items() if there) | rarities
