"""The spec of a program, known before it is made: what it is, what it refuses, and the bytes of its weights.

Those of the programs that run PyTorch modules are in torch_specs.py. Nothing here needs a tensor, so
that what a model costs is known without torch. A device and a dtype are given by their names.
"""

from collections.abc import Collection
from typing import Protocol

from tokenmill.cache.spec import CacheSpec
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import DecoderDescription
from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import EngineConfig


class ProgramSpec(Protocol):
    """Facts of one form of the forward pass. What it cannot run is refused by name, before anything is allocated."""

    attends: bool = False  # it reads the cache by itself, without a kernel of kernels/attend
    only_asked: bool = False  # "auto" never chooses it
    has_threads: bool = False  # it computes in threads of its own, and not in torch's
    finds_drafts: bool = False  # it takes drafts that are UNKNOWN and finds them, see Step.has_unknown
    packs: bool = False  # it has weights in a layout of its own, which packed models hold
    multiplies_float16: bool = False  # on a CPU, as fast as other floating point; products of torch are slow there
    shares_memory: bool = False  # its ranks are on one machine, and map one cache
    prefers_codes: bool = False  # it multiplies by integer codes fast: "auto" may choose a scheme of codes for it
    mixers: Collection[str] = ("attention",)  # the first halves of layers that it computes

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Whether it can multiply by matrices that are stored so."""

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> str | None:
        """Say why this program cannot run that model with these settings, or None. `config` is resolved."""
        return None

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        """Foresee num_weight_bytes of the program."""

    @staticmethod
    def copy_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        """Foresee the bytes of the weights in a packed copy, of a program that packs."""

    @staticmethod
    def rank_weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme, ranks: int) -> list[int]:
        """Foresee num_weight_bytes of the program of each rank among which it divides a model."""

    @staticmethod
    def rank_cache_bytes(cache: CacheSpec, ranks: int) -> list[int]:
        """Foresee the bytes of the cache that each rank holds, of those of the whole one."""


def refuse_mixers(program: type[ProgramSpec], config: EngineConfig, decoder: DecoderDescription) -> str | None:
    """Give the reason of a program that does not know the mixer of some layer, or None."""
    # Ranks divide attention alone.
    known = program.mixers if config.tensor_parallel == 1 else ProgramSpec.mixers
    for number, layer in enumerate(decoder.layers):
        if layer.mixer.name not in known:
            ranks = f" in {config.tensor_parallel} ranks" * (config.tensor_parallel > 1)
            return f"does not compute {layer.mixer.name}{ranks}, the mixer of layer {number}"
    return None
