"""The spec of program graphs: what it refuses, known before it is made."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from tokenmill.cache.spec import CacheSpec
from tokenmill.kernels.devices import compute_capability, kind_of
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import DecoderDescription, describe
from tokenmill.model.features import features_of, states_of
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.program.native.spec import ACTIVATIONS
from tokenmill.program.torch_specs import EagerSpec
from tokenmill.quant.schemes import GROUP, Scheme
from tokenmill.settings.engine_config import DTYPES, EngineConfig, ResolvedConfig

SERVED = frozenset({
    "layers that keep a state", "layers without a mixer or without an MLP", "gate on the output of attention",
    "embedding multiplier", "multipliers of products", "residual multiplier", "logit multiplier",
    "norm after attention or MLP", "attention or MLP without a norm before it", "norm with unit offset",
    "rope that differs from layer to layer", "kv heads that differ from layer to layer",
    "head widths that differ from layer to layer", "attention window", "attention softcap", "logit softcap",
    "norm of q and k", "part of each head rotated", "attention sinks",
    "clamped SwiGLU", "mixture of experts", "experts in some layers only", "shared experts",
    "sigmoid scores of experts", "correction of a router's scores", "groups of experts", "scaled weights of experts",
    "bias on a router", "biases within a mixture of experts", "norm over all heads of q and k",
    "parallel attention and MLP", "one norm for attention and MLP", "learned positions",
    "LayerNorm of q and k", "norms of q and k with weights for each head", "latent attention",
})  # fmt: skip
"""What the kernels compute of the features of models, see features.py."""

SPLIT = 256
"""Positions that one program of attention reads. A context of 8,192 tokens then has 32 programs for each kv head: with
8 kv heads 256 programs, where an H100 has 132 processors."""

IN_8_BITS = "int8"
"""The cache format whose codes and scales attention reads and writes, as it does plain rows."""

OLDEST_TRITON = (3, 5)
"""The first version that was tried: the interpreter of 3.4 and earlier lacks functions that the kernels call."""

CAPABILITY = (8, 0)
"""The first generation that multiplies bfloat16, and copies to shared memory beside computing: A100 and later."""

WIDEST_HEAD = 256
"""A tile of 16 heads and one of 64 keys of this width take 100 KB of the memory of a processor of an A100, of 164. A
program of a recurrence holds 32 columns of a state in registers: with keys of this width 64 numbers a thread."""


WIDEST_LATENT = 512
"""Sums of 16 heads of this width take 32 registers of each of 256 threads."""


class GraphsSpec(EagerSpec):
    only_asked = True  # never measured on a GPU: "auto" keeps what was
    mixers = ("attention", "latent", "short_conv", "delta_net", "kda", "mamba2", "absent")
    rarities = ()

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Run plain matrices and codes of every kind, but not matrices in a layout of oneDNN."""
        return scheme.matrix != "packed"

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> str | None:
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        merged = {"qkv", "gate_up"} <= set(config.fused)
        reasons = (
            kind_of(device) != "cuda" and not interpreted and f"runs on a GPU, and the device is {device}",
            _refuse_triton(),
            kind_of(device) == "cuda" and not interpreted and _refuse_capability(device),
            config.tensor_parallel > 1 and "computes in one process, and tensor_parallel asks for more",
            config.kernel != "auto" and f"attends by itself, and kernel {config.kernel} was asked for",
            not merged and f"fuses by itself, and fuse {config.fuse} was asked for",
            cache.format not in ("dense", IN_8_BITS) and f"cannot read cache format {cache.format}",
            (config.adapter is not None or config.lora_modules)
            and "computes no adapters; merge one into the model (tokenmill merge)",
            config.compile != "auto" and f"compiles by itself, and compile {config.compile} was asked for",
            _refuse(describe(model)),
        )
        return next((reason for reason in reasons if isinstance(reason, str)), None)

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        """Foresee the bytes of EagerSpec, but of codes of 4 bits two in a byte, and of scales in float16."""
        whole = EagerSpec.weight_bytes(model, dtype, scheme)
        bits = {4: 5.0, 8: 8.5}.get(scheme.rounds_to or 0, model.compact_bits if scheme.keeps_codes else 0.0)
        if not bits:
            return whole
        for matrix, count in describe(model).matrices.items():
            if matrix.role != "router":  # no scheme rounds a router
                numbers = matrix.outputs * -(-matrix.inputs // GROUP) * GROUP
                ours = int(count * numbers * bits / 8)
                whole += ours - count * scheme.matrix_bytes(matrix.outputs, matrix.inputs, dtype, model.code_bits)
        return whole

    @staticmethod
    def scratch_bytes(config: ResolvedConfig, model: ModelConfig) -> int:
        return DTYPES["float32"] * scratch_numbers(config, model)


def _refuse_triton() -> str | None:
    """Refuse a missing Triton, or an older one: it is not imported for that, since it takes a second."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        return "needs Triton: pip install triton, on Linux"
    version = re.search(
        r"^__version__ = ['\"]((\d+)\.(\d+)[^'\"]*)", Path(found.origin).read_text("utf-8"), re.MULTILINE
    )
    if version is not None and (int(version[2]), int(version[3])) >= OLDEST_TRITON:
        return None
    known = "one without a number" if version is None else version[1]
    return f"needs Triton {'.'.join(map(str, OLDEST_TRITON))} or later, and this is {known}: pip install -U triton"


def _refuse_capability(device: str) -> str | None:
    """Refuse a GPU of NVIDIA's of an earlier generation."""
    found = compute_capability(device)
    if found is None or found >= CAPABILITY:
        return None
    needed, has = (".".join(map(str, each)) for each in (CAPABILITY, found))
    return f"needs compute capability {needed} (A100) or later, and this GPU has {has}"


def scratch_numbers(config: ResolvedConfig, model: ModelConfig) -> int:
    """Count the numbers of float32 that the splits of the longest texts give, for each head a maximum, a sum and a row
    of values: of one layer at a time, in the largest step.
    """
    splits, decoder = -(-config.max_length // SPLIT), describe(model)
    widths = [(block.num_heads, block.head_dim) for block in decoder.attentions]
    widths += [(block.num_heads, block.latent_dim) for block in _latents(decoder)]
    of_split = max((heads * (width + 2) for heads, width in widths), default=0)
    return config.max_sequences * splits * of_split if splits > 1 else 0


def _latents(decoder: DecoderDescription) -> list[LatentBlock]:
    return [mixer for layer in decoder.layers for mixer in layer.mixers if isinstance(mixer, LatentBlock)]


def _refuse(decoder: DecoderDescription) -> str | None:
    config, heads = decoder.config, decoder.attentions
    lacking = sorted(features_of(decoder) - SERVED)
    of_heads = [norm for block in heads for norm in block.qk_norms]
    activations = [mlp.activation for layer in decoder.layers for mlp in layer.mlps]
    unknown = [name for name in activations if name not in ACTIVATIONS]
    mixers = [mixer for layer in decoder.layers for mixer in layer.mixers]
    scaled = any(each.is_scaled for mixer in mixers for role, each in mixer.matrices.items() if role != "out")
    keys = [shape[2] for state in states_of(decoder) for shape in state.shapes[1:]]  # see slices.py
    wide = max([*keys, *(block.head_dim for block in heads)], default=0)
    differ = len({(norm.kind, norm.bias, norm.unit_offset, norm.heads > 1) for norm in of_heads}) > 1
    all_centred = any(norm.kind == "layer" for block in heads if not block.norms_heads for norm in block.qk_norms)
    latents = _latents(decoder)
    widest = max((block.latent_dim for block in latents), default=0)
    is_part = decoder.mtp is not None or not config.has_head or config.num_types > 0
    reasons = (
        lacking and f"has no kernel for {lacking[0]}",
        differ and "has no kernel for norms of Q and K of which one is of another kind",
        all_centred and "has no kernel for LayerNorm over all heads of Q and K",
        is_part and "computes whole decoders, with a head and without types of tokens",
        scaled and "has no kernel for multipliers of what a mixer reads",
        wide > WIDEST_HEAD
        and f"has no kernel for heads or keys of more than {WIDEST_HEAD} numbers, and the model's have {wide}",
        widest > WIDEST_LATENT
        and f"has no kernel for latent vectors of more than {WIDEST_LATENT} numbers, and the model's have {widest}",
        any(block.temperature for block in latents) and "has no kernel for attention temperature by position",
        unknown and f"has no activation {unknown[0]!r}",
    )
    return next((reason for reason in reasons if isinstance(reason, str)), None)
