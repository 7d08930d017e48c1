"""The sampling settings of a request that names none: what is recommended for its model, and what its protocol has.

A request's own values go first, then the recommendation, then the protocol's defaults, then the defaults of
SamplingParams. This is the only place that decides it. The library and the shell have no defaults of a protocol: where
nothing is recommended, they take the likeliest token.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

RECOMMENDABLE = {name: told for name, told in settings_of(SamplingParams).items() if told.model_files}
"""The settings that a model's files may recommend."""


class Recommended(dict[str, Any]):
    """Settings by the names of SamplingParams. origin: the place where they were read; "" if empty."""

    def __init__(self, settings: Mapping[str, Any] = {}, origin: str = "") -> None:
        super().__init__(settings)
        self.origin = origin if settings else ""


NOTHING = Recommended()
OPENAI = Recommended({"temperature": 1.0}, "OpenAI's default")
"""Of /v1: OpenAI's API reference. Anthropic's Messages API has the same."""
OLLAMA = Recommended({"temperature": 0.8, "top_k": 40, "top_p": 0.9}, "Ollama's default")
"""Of /api: DefaultOptions in Ollama's api/types.go, where repeat_penalty is 1.0, which is off."""
LLAMA_CPP = Recommended({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}, "llama.cpp's default")
"""Of /completion: common_params_sampling in llama.cpp's common/common.h."""
OWN = "tokenmill's default"


class InForce(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: Any
    origin: str


def default_settings(recommended: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a request that names none, without settings that have SamplingParams' defaults."""
    return {**protocol, **recommended}


def in_force(recommended: Recommended, protocol: Recommended) -> dict[str, InForce]:
    """Find the value and the origin of each setting that may be recommended, for a request that names none."""
    found = {name: InForce(getattr(SamplingParams(), name), OWN) for name in RECOMMENDABLE}
    for source in (protocol, recommended):
        found |= {name: InForce(value, source.origin) for name, value in source.items() if name in found}
    return found


def say_origins(values: Mapping[str, InForce]) -> str:
    """Write the values that change a draw, by the place that they come from."""
    usual, names = SamplingParams(), dict[str, list[str]]()
    for name, found in values.items():
        if name == "temperature" or found.value != getattr(usual, name):
            names.setdefault(found.origin, []).append(f"{name} {found.value}")
    return "; ".join(f"{', '.join(each)} ({origin})" for origin, each in names.items())


def say(settings: Mapping[str, Any]) -> str:
    """Write settings as a list of names and values."""
    return ", ".join(f"{name} = {value!r}" for name, value in settings.items())
