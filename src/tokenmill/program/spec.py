"""The spec of a program, known before it is made: its facts, what it refuses, and the bytes of its weights; and the
choice of the program that runs a model.

"auto" takes the first program that does not refuse, leaving out programs that must compile first. Which weight schemes
a program runs follows from the facts that a scheme gives. The specs of the programs that run PyTorch modules are in
torch_specs.py. Nothing here needs a tensor, so that the cost of a model is known without torch. A device and a dtype
are given by their names.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import ConfigError
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import OF_DECODERS, DecoderDescription, describe
from tokenmill.quant.schemes import Scheme, find_scheme
from tokenmill.registry import PROGRAMS, SCHEMES, help_of, lookup
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig

BUILT_IN = ("attention", "gated_attention", "short_conv", "delta_net", "mamba2", "kda", "latent", "absent")
"""The mixers that the package has."""


class ProgramSpec(Protocol):
    """Facts of one form of the forward pass. It refuses a model by name, before anything is allocated."""

    attends: bool = False  # it reads the cache by itself, without a kernel of kernels/attend
    only_asked: bool = False  # "auto" never chooses it
    has_threads: bool = False  # it computes in threads of its own, and not in torch's
    finds_drafts: bool = False  # it takes drafts that are UNKNOWN and finds them, see Step.has_unknown
    packs: bool = False  # it has a layout of its own for weights, which packed models hold
    multiplies_float16: bool = False  # on a CPU, as fast as other floating point; products of torch are slow there
    shares_memory: bool = False  # its ranks are on one machine, and map one cache
    prefers_codes: bool = False  # it multiplies by integer codes fast: "auto" may choose a scheme of codes for it
    mixers: Collection[str] = ("attention",)  # the first halves of layers that it computes
    rarities: Collection[str] = ()  # what it computes of LayerDescription.rarities
    in_ranks: Collection[str] = OF_DECODERS  # what of these in several ranks

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Say whether the program can multiply by matrices that are stored in this scheme."""

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> str | None:
        """Say why this program cannot run that model with these settings, or None. `config` is resolved."""
        return None

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        """Foresee num_weight_bytes of the program."""

    @staticmethod
    def copy_bytes(model: ModelConfig, dtype: str, scheme: Scheme) -> int:
        """Foresee the bytes of the weights in a packed copy, for a program that packs."""

    @staticmethod
    def scratch_bytes(config: ResolvedConfig, model: ModelConfig) -> int:
        """Foresee num_scratch_bytes of the program."""
        return 0

    @staticmethod
    def rank_weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme, ranks: int) -> list[int]:
        """Foresee num_weight_bytes of the program of each rank among which it divides a model."""

    @staticmethod
    def rank_caches(cache: CacheSpec, model: ModelConfig, ranks: int) -> list[CacheSpec]:
        """Describe the part of the whole cache that each rank holds."""


def refuse_mixers(program: type[ProgramSpec], config: EngineConfig, decoder: DecoderDescription) -> str | None:
    """Give the reason of a program that does not know the mixer of some layer, or None."""
    several = f" in {config.tensor_parallel} ranks" * (config.tensor_parallel > 1)
    rarities = program.in_ranks if several else program.rarities
    for number, layer in enumerate(decoder.layers):
        if unknown := [mixer.name for mixer in layer.mixers if mixer.name not in program.mixers]:
            return f"does not compute {unknown[0]}, the mixer of layer {number}"
        if layer.mlp is None and "absent" not in program.mixers:
            return f"does not compute layer {number}, which has no MLP"
        if lacking := [rarity for rarity in layer.rarities if rarity not in rarities]:
            return f"does not compute {lacking[0]}{several}, which layer {number} has"
    return None


def find_spec(name: str) -> type[ProgramSpec]:
    """Find the facts of the program of that name."""
    found: type[ProgramSpec] = lookup(PROGRAMS, name, "program")
    return found


class Choice(NamedTuple):
    """The program to use, and the reason. refusals: why the faster programs that "auto" tried cannot run."""

    name: str
    reason: str
    program: type[ProgramSpec]
    refusals: Mapping[str, str]


def choose(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: str) -> Choice:
    """Choose the program to use; ConfigError with every reason when none can."""
    name, reasons = config.program, dict[str, str]()
    if name == "auto" and config.aot_package is not None:
        name = "aot"
    elif name == "auto" and config.compile not in ("auto", "no"):
        name = "compiled"
    for candidate in PROGRAMS if name == "auto" else [name]:
        program = find_spec(candidate)
        if name == "auto" and program.only_asked:
            continue
        unknown = _refuse_scheme(program, config.scheme) or refuse_mixers(program, config, describe(model))
        reason = unknown or program.refuse(config, model, cache, device)
        if reason is None:
            why = "as asked" if name != "auto" else "the fastest that does not refuse"
            return Choice(candidate, f"{help_of(PROGRAMS[candidate])}; {why}", program, reasons)
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise ConfigError("program", name, f"none can run this model on {device} ({refusals})")


def preferred_schemes(program: type[ProgramSpec]) -> list[str]:
    """List the weight schemes that "auto" may choose for a program, in the order in which it tries them."""
    schemes = {name: find_scheme(name) for name in SCHEMES}
    fast = [name for name, scheme in schemes.items() if program.prefers_codes or not scheme.is_integer]
    return [name for name in fast if program.runs(schemes[name])]


def _refuse_scheme(program: type[ProgramSpec], name: str) -> str | None:
    """Give the reason of a program that does not run the weight scheme of that name, or None."""
    if name == "auto" or program.runs(find_scheme(name)):
        return None
    return f"does not run scheme {name}, only {', '.join(each for each in SCHEMES if program.runs(find_scheme(each)))}"
