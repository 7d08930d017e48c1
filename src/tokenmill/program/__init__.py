"""Programs, the forms of one forward, and the choice of the one that runs a model.

A program is a room with a spec, a class that runs, and a line of PROGRAMS in the registry. "auto" takes the first that
does not refuse, leaving out those that must compile first. Which weight schemes a program runs follows from the facts
that a scheme gives.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import ConfigError
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.program.spec import ProgramSpec, refuse_mixers
from tokenmill.quant.schemes import find_scheme
from tokenmill.registry import PROGRAMS, SCHEMES, help_of, lookup
from tokenmill.settings.engine_config import EngineConfig

__all__ = ["Choice", "choose", "find_spec", "preferred_schemes"]


def find_spec(name: str) -> type[ProgramSpec]:
    """Find the facts of the program of that name."""
    found: type[ProgramSpec] = lookup(PROGRAMS, name, "program")
    return found


class Choice(NamedTuple):
    """The program to use, and why. refusals: why each of the faster ones cannot run that "auto" tried before it."""

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
