"""The spec of program native: what it refuses, and the bytes of its packed weights, known before it is made."""

from collections.abc import Iterator
from dataclasses import replace

from tokenmill.cache.spec import CacheSpec
from tokenmill.kernels import native_library
from tokenmill.kernels.devices import kind_of
from tokenmill.model.blocks import Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.counts import count_parameters
from tokenmill.model.description import RARITIES, DecoderDescription, describe
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.model.per_layer import CODED, bytes_in_file, numbers_in_file
from tokenmill.parallel.division import ALONE, Rank
from tokenmill.program.native.layouts import LAYOUTS, TILE, kv_number, matrix_layout
from tokenmill.program.spec import BUILT_IN, ProgramSpec
from tokenmill.quant.schemes import GROUP, Scheme
from tokenmill.settings.engine_config import DTYPES, EngineConfig

ACTIVATIONS = {
    "silu": 1,
    "swish": 1,
    "gelu": 2,
    "gelu_fast": 3,
    "gelu_new": 3,
    "gelu_pytorch_tanh": 3,
    "relu": 4,
    "relu2": 5,
    "xielu": 6,
}


class NativeSpec(ProgramSpec):
    attends = finds_drafts = packs = prefers_codes = has_threads = multiplies_float16 = shares_memory = True
    mixers = BUILT_IN
    rarities = RARITIES

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        return matrix_layout(scheme, "float32") is not None

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> str | None:
        why, number = native_library.why_not(), kv_number(cache.format, cache.dtype)
        reasons = (
            config.fuse != EngineConfig.fuse and f"fuses by itself, and fuse {config.fuse} was asked for",
            config.kernel != "auto" and f"attends by itself, and kernel {config.kernel} was asked for",
            kind_of(device) != "cpu" and f"runs on the CPU, and the device is {device}",
            why and f"its library {why}",
            number is None and f"cannot read cache format {cache.format}",
            _refuse(describe(model)),
        )
        return next((reason for reason in reasons if isinstance(reason, str)), None)

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        return _packed_bytes(model, dtype, scheme, ALONE)

    @staticmethod
    def copy_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        """Foresee the bytes of a copy. A copy that keeps codes may have the floating-point tensors in every dtype."""
        own = _packed_bytes(model, dtype, scheme, ALONE) + _table_bytes(model, dtype)
        return own + 2 * DTYPES["float32"] * _count_floats(model) if scheme.keeps_codes and model.codes else own

    @staticmethod
    def rank_weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme, ranks: int) -> list[int]:
        return [_packed_bytes(model, dtype, scheme, Rank(number, ranks)) for number in range(ranks)]

    @staticmethod
    def rank_caches(cache: CacheSpec, model: ModelConfig, ranks: int) -> list[CacheSpec]:
        """Describe the cache of each rank: all map one cache, which is counted once."""
        return [cache] + [replace(cache, layers=())] * (ranks - 1)


def _refuse(decoder: DecoderDescription) -> str | None:
    for number, layer in enumerate(decoder.layers):
        mlp = layer.mlp
        if isinstance(mlp, ExpertsBlock) and mlp.latent is not None and (layer.after or mlp.shared_gate):
            return f"has neither a norm nor a gate beside experts behind a latent row, which layer {number} has"
    name = decoder.config.activation
    return None if name in ACTIVATIONS else f"has no activation {name!r}"


def has_coded_embedding(model: ModelConfig, scheme: Scheme) -> bool:
    """Say whether tokens are looked up in codes of the checkpoint: its embedding's, or the head's if they are tied."""
    return model.embedding_bits > 0 and (scheme.keeps_codes or not model.tie_embeddings)


def first_rows(matrix: Projection, unit: int) -> Iterator[int]:
    """Yield the first row of each unit of so many rows; a unit lies within one part."""
    begin = 0
    for rows in matrix.parts:
        yield from range(begin, begin + rows, unit)
        begin += rows


def _count_floats(model: ModelConfig) -> int:
    """Count a coded checkpoint's floating-point numbers: all but matrices and the embedding, with routers."""
    decoder, parts = describe(model), count_parameters(model)
    found = sum(parts.values()) - parts["embedding"] + (decoder.head.num_weights if model.tie_embeddings else 0)
    if _has_coded_table(model):
        found -= parts["inputs"]
    for matrix, count in decoder.matrices.items():
        found -= count * matrix.num_weights
        if matrix.role == "router":
            found += count * matrix.inputs * (matrix.outputs + -matrix.outputs % TILE)
    return found


def _table_bytes(model: ModelConfig, dtype: str) -> int:
    """Count the bytes that a copy has of a table that stays in the model's file: its codes, or numbers of the dtype."""
    return bytes_in_file(model, dtype)[0] if _has_coded_table(model) else numbers_in_file(model, dtype) * DTYPES[dtype]


def _has_coded_table(model: ModelConfig) -> bool:
    return model.per_layer is not None and model.per_layer.stored in CODED


def _packed_bytes(model: ModelConfig, dtype: str, scheme: Scheme, rank: Rank) -> int:
    """Count the bytes of a rank's weights: full tiles, embeddings as they are, small parameters in float32.

    This is an estimate where the codes of a checkpoint are kept: its tensors may have several kinds. Rank 0 alone looks
    tokens up in tables.
    """
    layout, itemsize = matrix_layout(scheme, dtype), DTYPES[dtype]
    assert layout is not None, "other schemes are refused"
    decoder = describe(model)
    whole = [block for block in decoder.attentions if block.value_dim == block.head_dim]
    packed, numbers, head_dims = 0, 0, {block.qkv: block.head_dim for block in whole}
    for matrix, count in decoder.matrices.items():
        unit = TILE if matrix.role == "router" else head_dims.get(matrix, GROUP)
        stored = dtype if matrix.role == "router" else layout  # no scheme rounds a router
        tile = int(native_library.library().tm_tile_bytes(LAYOUTS[stored], matrix.inputs))
        # Gates are divided as their rows are.
        sides = 2 if matrix.role == "gate_up" else 1
        units = len(rank.share(len(list(first_rows(matrix, unit))) // sides)) * sides
        packed += count * tile * units * -(-unit // TILE)
        numbers += count * matrix.num_weights
    if scheme.keeps_codes and model.code_bits:
        packed = int(numbers * model.code_bits / 8) // rank.count
    parts = count_parameters(model)
    tables = parts["embedding"] + parts["positions"] + parts["inputs"]
    others = tables - parts["embedding"] - numbers_in_file(model, dtype)  # tables that are never codes here
    tied = decoder.head.num_weights if model.tie_embeddings else 0
    table_bytes = (parts["embedding"] + others) * itemsize
    if has_coded_embedding(model, scheme):
        coded = 0 if tied else int(parts["embedding"] * model.embedding_bits / 8)
        table_bytes = others * itemsize + coded
    table_bytes = 0 if rank.number else table_bytes
    ones = sum(block.value_norm.size for block in decoder.attentions if block.value_norm is not None)
    return packed + table_bytes + 4 * (sum(parts.values()) + tied - numbers - tables + ones)
