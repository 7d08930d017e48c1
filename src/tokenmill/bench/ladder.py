"""The ladder: from recomputing everything to the fastest there is, one change per rung.

Rungs come from the registries, so a new program, scheme or proposer is a rung without a line here. What refuses on this
machine is named with its reason and left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.bench.points import Point
from tokenmill.bench.series import Series
from tokenmill.errors import ConfigError
from tokenmill.loader.resolve import resolve
from tokenmill.model.config import ModelConfig
from tokenmill.program.spec import find_spec, preferred_schemes
from tokenmill.quant.schemes import REFERENCE
from tokenmill.registry import PROGRAMS, PROPOSERS
from tokenmill.settings.engine_config import FUSIBLE, EngineConfig

PAGE = 16
DRAFT_MODEL = "q8"  # the one rung with a draft model has this one, unless the user names another


@dataclass(frozen=True)
class Rung:
    """A label, and the settings that differ from the user's own. refused: why it is not climbed here, if so.

    on_fastest: whether the settings come on top of the settings of the fastest rung so far.
    """

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    on_fastest: bool = False
    refused: str | None = None


def rungs(config: EngineConfig, model: ModelConfig) -> list[Rung]:
    """Return the rungs from the bottom up."""
    draft, config = config.draft_model or DRAFT_MODEL, replace(config, draft_model=None)
    slowest = {"program": list(PROGRAMS)[-1], "scheme": REFERENCE}
    found = [
        Rung("no cache", {**slowest, "cache": False}),
        Rung(f"{slowest['program']}, static cache", slowest),
        Rung(f"{slowest['program']}, paged cache", {**slowest, "block_size": PAGE}),
    ]
    for count in range(len(FUSIBLE) + 1):
        names = ",".join(FUSIBLE[:count])
        found.append(Rung(f"{slowest['program']}, {names or 'nothing'} fused", {**slowest, "fuse": names or "none"}))
    for program in reversed(PROGRAMS):
        for scheme in preferred_schemes(find_spec(program)):
            settings = {"program": program, "scheme": scheme}
            if settings != slowest:
                reason = _refused(config, settings, model)
                found.append(Rung(f"{program}, {scheme} weights", settings, refused=reason))
    # Native is adaptive by itself: it chooses between several steps in one call and suffix.
    guessers = [name for name in PROPOSERS if name not in ("off", "adaptive", "multi_step", "draft_model")]
    found += [Rung(f"fastest, {name}", {"speculate": name}, True) for name in guessers]
    found.append(Rung(f"fastest, draft model {draft}", {"speculate": "draft_model", "draft_model": draft}, True))
    return found


def _refused(config: EngineConfig, settings: dict[str, Any], model: ModelConfig) -> str | None:
    """Return the reason why no engine can be made of these settings, or None."""
    try:
        resolve(replace(config, **settings), model)
    except ConfigError as error:
        return str(error)
    return None


def climb(series: Series, config: EngineConfig, steps: list[Rung], point: Point) -> Iterator[dict[str, Any]]:
    """Yield a row for each rung, with the factor over the rung below and over the first."""
    first: float | None = None
    below: float | None = None
    fastest: tuple[float, dict[str, Any]] = (0.0, {})
    for rung in steps:
        if rung.refused is not None:
            continue
        settings = {**(fastest[1] if rung.on_fastest else {}), **rung.settings}
        for row in series.rows([point], replace(config, **{"draft_model": None, **settings}), rung.label):
            rate = row.get("decode_tok_s")
            first = first or rate
            over_below = rate / below if rate and below else None
            yield {**row, "over_below": over_below, "over_first": rate / first if rate and first else None}
            below = rate or below
            if rate and rate > fastest[0] and row["cache"]:
                fastest = (rate, settings)
