"""The cost of a model in bytes and operations, by arithmetic alone: weights, cache, workspace, memory traffic, and the
lower bound of a step.

Weights and cache are exact, the engine allocates just these; a test holds both to it. The workspace of a step is an
estimate of its widest point. Traffic is what a step cannot avoid: each weight read once, each cached row read once,
each multiplication done. Divided by what the machine can do, it is the floor that no program gets under.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from tokenmill.cache.spec import CacheSpec, RowsSpec, kv_bytes_per_token
from tokenmill.kernels.devices import kind_of
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.model.config import ModelConfig
from tokenmill.model.counts import count_parameters
from tokenmill.model.description import DecoderDescription, describe
from tokenmill.model.features import states_of
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.mixture import mixtures_of
from tokenmill.quant.schemes import find_scheme
from tokenmill.settings.engine_config import DTYPES, EngineConfig, ResolvedConfig

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine


@dataclass(frozen=True)
class Cost:
    """Bytes that an engine needs, by purpose, and of one token in the cache. state_bytes: of the cache, the states."""

    weights_bytes: int
    cache_bytes: int
    workspace_bytes: int
    bytes_per_token: int
    state_bytes: int = 0

    @classmethod
    def together(cls, ranks: "Sequence[Cost]") -> "Cost":
        """Add up the bytes of all ranks."""
        return cls(*(sum(getattr(rank, entry.name) for rank in ranks) for entry in fields(cls)))

    @property
    def total_bytes(self) -> int:
        """The bytes of all purposes together."""
        return self.weights_bytes + self.cache_bytes + self.workspace_bytes

    def tokens_within(self, available_bytes: int) -> int:
        """Count the cache slots that fit into memory of this size; 0 when not even the weights fit."""
        spare = max(0, available_bytes - self.weights_bytes - self.workspace_bytes - self.state_bytes)
        return spare // max(self.bytes_per_token, 1)


@dataclass(frozen=True)
class Traffic:
    """The minimum that one step, or one prefill, has to move and compute."""

    read_bytes: float
    operations: float

    def floor_s(self, bytes_per_s: float, operations_per_s: float) -> float:
        """Compute the seconds on a machine that can do this much of each: the larger of the two."""
        return max(self.read_bytes / bytes_per_s, self.operations / operations_per_s)


@dataclass(frozen=True)
class Storage:
    """The storage of values. bytes_per_weight: of matrices, with scales. integer: they are multiplied as bytes."""

    dtype: str
    bytes_per_weight: float
    integer: bool = False
    cache_format: str = EngineConfig.cache_format

    @classmethod
    def plain(cls, dtype: str, cache_format: str = EngineConfig.cache_format) -> "Storage":
        """Describe matrices in the dtype itself."""
        return cls(dtype, DTYPES[dtype], cache_format=cache_format)

    @classmethod
    def of_engine(cls, engine: "Engine") -> "Storage":
        """Describe the storage that the engine really has."""
        integer, config = find_scheme(engine.config.scheme).is_integer, engine.config
        per_weight = engine.memory["matrix_bytes"] / num_used(engine.model_config)
        return cls(config.dtype, per_weight, integer, config.cache_format)

    @classmethod
    def planned(cls, resolved: ResolvedModel, file_bytes: int) -> "Storage":
        """Describe the storage that an engine will have; `file_bytes` is the size of the checkpoint."""
        config, bits = resolved.config, resolved.scheme.bits_per_weight
        if not resolved.scheme.is_integer:
            return cls.plain(config.dtype, config.cache_format)
        per_weight = file_bytes / sum(count_parameters(resolved.model).values()) if bits is None else bits / 8
        return cls(config.dtype, per_weight, True, config.cache_format)


def cost_of(resolved: ResolvedModel) -> Cost:
    """Compute the memory that an engine takes: of the largest rank if each has its own GPU, else of all."""
    ranks = costs_of_ranks(resolved)
    if kind_of(resolved.config.device) == "cuda":
        return max(ranks, key=lambda rank: rank.total_bytes)
    return Cost.together(ranks)


def costs_of_ranks(resolved: ResolvedModel) -> list[Cost]:
    """Compute the memory that each rank takes; without tensor parallelism there is one rank."""
    whole, config, count = _cost_of_one(resolved), resolved.config, resolved.config.tensor_parallel
    if count == 1:
        return [whole]
    program = resolved.program
    weights = program.rank_weight_bytes(resolved.model, config.dtype, resolved.scheme, count)
    caches = program.rank_caches(resolved.cache, resolved.model, count)
    return [
        _cost(weights_bytes, whole.workspace_bytes, cache) for weights_bytes, cache in zip(weights, caches, strict=True)
    ]


def _cost_of_one(resolved: ResolvedModel) -> Cost:
    workspace = _workspace_bytes(resolved.config, resolved.model) + resolved.scratch_bytes
    return _cost(resolved.weight_bytes, workspace, resolved.cache)


def _cost(weights_bytes: int, workspace_bytes: int, cache: CacheSpec) -> Cost:
    state_bytes = cache.bytes_per_state * cache.num_states
    return Cost(weights_bytes, cache.num_bytes, workspace_bytes, cache.bytes_per_token, state_bytes)


def kv_bytes(model: ModelConfig, dtype: str, cache_format: str = "dense") -> int:
    """Count the bytes of K and V of one token in all layers."""
    own = [kept for kept in describe(model).keeps if isinstance(kept, RowsSpec)]
    return kv_bytes_per_token(own, dtype, cache_format)


def num_used(model: ModelConfig) -> int:
    """Count the parameters that long texts read: all except the embeddings. A tied head is read."""
    counts = count_parameters(model)
    return counts["attention"] + counts["mlp"] + counts["norms"] + describe(model).head.num_parameters


def num_read(model: ModelConfig, num_tokens: int) -> int:
    """Count the parameters that a step of so many tokens reads, without the experts that no token chose: the average
    number of them where all experts are as likely and every token chooses for itself.

    The rows of the embedding, one for each token, are not counted.
    """
    unread: float = sum(
        mixture.num
        * (1 - mixture.chosen / mixture.num) ** num_tokens
        * sum(count * matrix.num_parameters for matrix, count in mixture.expert.matrices.items())
        for mixture in mixtures_of(describe(model))
    )
    return num_used(model) - round(unread)


def head_share(model: ModelConfig) -> float:
    """Compute the head's share of the parameters that a token reads; 0 without a head."""
    if not model.has_head:
        return 0.0
    return describe(model).head.num_parameters / num_read(model, 1)


def decode_traffic(model: ModelConfig, storage: Storage, batch: int, depth: float, cache: bool = True) -> Traffic:
    """Count the traffic of one step of `batch` sequences that each have `depth` tokens behind them.

    Without a cache the step is a prefill of everything.
    """
    if not cache:
        return prefill_traffic(model, storage, batch, depth + 1)
    read_bytes = num_read(model, batch) * storage.bytes_per_weight
    read_bytes += batch * _seen_bytes(model, storage, depth)
    return Traffic(read_bytes, batch * (2 * num_read(model, 1) + _attention_operations(model, depth)))


def prefill_traffic(model: ModelConfig, storage: Storage, batch: int, num_tokens: float, depth: float = 0) -> Traffic:
    """Count the traffic of `num_tokens` new tokens of `batch` sequences, after `depth` others; the last alone has
    logits.
    """
    read_bytes = num_read(model, batch * max(round(num_tokens), 1)) * storage.bytes_per_weight
    read_bytes += batch * _seen_bytes(model, storage, depth)
    head = describe(model).head.num_parameters
    each = 2 * (num_read(model, 1) - head) + _attention_operations(model, depth + num_tokens / 2)
    return Traffic(read_bytes, batch * (num_tokens * each + 2 * head))


def _seen_bytes(model: ModelConfig, storage: Storage, depth: float) -> float:
    """Count the bytes of K and V rows of past tokens that a query attends to, in all layers, and of the states that a
    text reads and writes in a step.
    """
    decoder = describe(model)
    rows = sum(
        _seen(block, depth) * kv_bytes_per_token([block.rows], storage.dtype, storage.cache_format)
        for block in _readers(decoder)
    )
    return rows + 2 * sum(state.num_bytes for state in states_of(decoder))


def _readers(decoder: DecoderDescription) -> list[AttentionBlock | LatentBlock]:
    """List the mixers that read rows of past tokens."""
    mixers = [mixer for layer in decoder.layers for mixer in layer.mixers]
    return [mixer for mixer in mixers if isinstance(mixer, AttentionBlock | LatentBlock)]


def _seen(block: AttentionBlock | LatentBlock, depth: float) -> float:
    """Count the past tokens that a query attends to: a window cuts them."""
    return min(depth, block.shape.window or depth)


def _attention_operations(model: ModelConfig, depth: float) -> float:
    """Count the operations of one token: a product with K and one with V for every head and past token; for every
    number of a state a decay, a change and a sum of two.
    """
    decoder = describe(model)
    readers = _readers(decoder)
    read = [(block, block.rows.widths) for block in readers]
    attention = sum(2 * block.num_heads * (widths[0] + widths[-1]) * _seen(block, depth) for block, widths in read)
    return attention + 5 * sum(state.num_bytes for state in states_of(decoder)) / DTYPES["float32"]


def _workspace_bytes(config: ResolvedConfig, model: ModelConfig) -> int:
    """Estimate the activations at the widest point of the largest step, the logits, and the rotary table."""
    itemsize, decoder = DTYPES[config.dtype], describe(model)
    most = max(config.max_step_tokens, config.max_length) if model.both_ways else config.max_step_tokens
    tokens = min(most, config.max_sequences * config.max_length)
    # Residual and normed input; then either q, k, v (or the products of another mixer) with copies, rotated or
    # convolved, and the result, or the two halves of the MLP with their product. Norms and logits are computed in
    # float32 beside their own dtype.
    mixers = [mixer.matrices for layer in decoder.layers if layer.mixes for mixer in layer.mixers]
    products = [sum(matrix.outputs for role, matrix in each.items() if role != "out") for each in mixers]
    mixed = max((2 * count + each["out"].inputs for count, each in zip(products, mixers, strict=True)), default=0)
    mlp = (4 if model.gated_mlp else 2) * max(model.intermediate_size, model.shared_expert_size)
    activations = tokens * ((2 * model.hidden_size + max(mixed, mlp)) * itemsize + 2 * model.hidden_size * 4)
    logits = config.max_sequences * model.vocab_size * (itemsize + 2 * 4)
    rotary = sum(2 * config.max_length * rope.dim * itemsize for rope in decoder.ropes)
    return activations + logits + rotary
