"""The specs of the programs that run PyTorch modules: eager, compiled and aot."""

from collections.abc import Collection

from tokenmill.cache.spec import CacheSpec
from tokenmill.model.config import ModelConfig
from tokenmill.model.counts import count_parameters
from tokenmill.model.description import OF_DECODERS, RARITIES, SEVERAL, describe
from tokenmill.model.per_layer import numbers_in_file
from tokenmill.program.mixer_shares import cache_of_rank, refuse_division
from tokenmill.program.shares import rank_weight_bytes
from tokenmill.program.spec import BUILT_IN, ProgramSpec
from tokenmill.quant.schemes import Scheme
from tokenmill.registry import MIXERS
from tokenmill.settings.engine_config import DTYPES, EngineConfig


class EagerSpec(ProgramSpec):
    mixers: Collection[str] = MIXERS
    rarities: Collection[str] = RARITIES
    in_ranks = frozenset(OF_DECODERS) - {SEVERAL}  # a Mamba 2 without a norm, or with its norm before the gate

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Run every scheme: the module of a matrix multiplies by itself."""
        return True

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> str | None:
        """Refuse ranks that cannot divide the model: they divide merged matrices, and each needs heads."""
        if (ranks := config.tensor_parallel) == 1:
            return None
        if not {"qkv", "gate_up"} <= set(config.fused):
            return f"divides matrices with qkv and gate_up fused, and fuse is {config.fuse!r}"
        reasons = (refuse_division(mixer, ranks) for layer in describe(model).layers for mixer in layer.mixers)
        return next((reason for reason in reasons if reason is not None), None)

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        decoder, itemsize = describe(model), DTYPES[dtype]
        stored = numbers = 0  # bytes of the matrices, and how many numbers they have in a checkpoint
        for matrix, count in decoder.matrices.items():
            numbers += count * matrix.num_weights
            if matrix.role == "router":  # no scheme rounds a router
                stored += count * matrix.num_weights * itemsize
            else:
                stored += count * scheme.matrix_bytes(matrix.outputs, matrix.inputs, dtype, model.code_bits)
            if matrix.bias and scheme.rounds_to:
                stored += count * matrix.outputs * (DTYPES["float32"] - itemsize)
        tied = decoder.head.num_weights if model.tie_embeddings else 0
        shared = tied if scheme.is_plain else 0  # a tied head that is the embedding itself
        left = sum(count_parameters(model).values()) - numbers + tied - shared - numbers_in_file(model, dtype)
        return stored + left * itemsize

    @staticmethod
    def rank_weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme, ranks: int) -> list[int]:
        return rank_weight_bytes(model, dtype, scheme, ranks)

    @staticmethod
    def rank_caches(cache: CacheSpec, model: ModelConfig, ranks: int) -> list[CacheSpec]:
        """Describe the cache of each rank, which has the rows and states of its heads."""
        return [cache_of_rank(cache, describe(model), rank, ranks) for rank in range(ranks)]


class _MicroBatchedSpec(EagerSpec):
    only_asked = True
    mixers = BUILT_IN
    rarities = OF_DECODERS

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Run the schemes whose products a compiler can trace."""
        return scheme.is_traceable

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> str | None:
        return "computes in one process, and tensor_parallel asks for more" if config.tensor_parallel > 1 else None


class AotSpec(_MicroBatchedSpec):
    """Code from a package on disk."""


class CompiledSpec(_MicroBatchedSpec):
    """Code that torch.compile makes."""
