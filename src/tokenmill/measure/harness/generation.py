"""`generation_kwargs` of a task as sampling settings of the engine, with a seed for each request."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from tokenmill.errors import ConfigError
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

MAX_NEW_TOKENS = 256  # the harness' own default
SAMPLING = {name: told.stage for name, told in settings_of(SamplingParams).items() if told.stage}
WITHOUT_EFFECT: Mapping[str, Any] = {
    "num_beams": 1,
    "use_cache": True,
    "num_return_sequences": 1,
    "early_stopping": False,
}


@dataclass(frozen=True)
class GenerationSettings:
    """stop: texts that end a text. sampling: more fields of SamplingParams. seed: the task's own, if it has one."""

    stop: tuple[str, ...]
    max_new_tokens: int
    sampling: Mapping[str, Any]
    seed: int | None

    def params(self, seed: int, context: str, repetition: int) -> SamplingParams:
        """The settings of one request. Its seed follows from its own text alone, whatever other requests there are."""
        start = seed if self.seed is None else self.seed
        digest = sha256(f"{start}:{repetition}:{context}".encode("utf-8", "surrogatepass")).digest()
        own = int.from_bytes(digest[:8], "big") >> 1
        return SamplingParams(max_new_tokens=self.max_new_tokens, stop=self.stop, seed=own, **self.sampling)


def read_settings(given: Mapping[str, Any]) -> GenerationSettings:
    """ConfigError for a setting that the engine does not have: nothing that a task asks for is left out silently."""
    wanted = dict(normalize_gen_kwargs(dict(given), MAX_NEW_TOKENS))
    stops = tuple(dict.fromkeys(text for text in wanted.pop("until") if text))
    max_new_tokens, seed = wanted.pop("max_gen_toks"), wanted.pop("seed", None)
    is_sampled = wanted.pop("do_sample", False)
    sampling = {name: wanted.pop(name) for name in SAMPLING if name in wanted}
    for name, value in wanted.items():
        if name not in WITHOUT_EFFECT or WITHOUT_EFFECT[name] != value:
            allowed = f"until, max_gen_toks, do_sample, seed, {', '.join(SAMPLING)}"
            raise ConfigError(f"generation_kwargs: {name}", value, f"there are {allowed}")
    if not is_sampled:
        sampling = {name: value for name, value in sampling.items() if SAMPLING[name] != "draw"} | {"temperature": 0.0}
    return GenerationSettings(stops, max_new_tokens, sampling, seed)
