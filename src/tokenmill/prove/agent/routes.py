"""The routes that an agent asks, as a check sends their bodies again and reads what the server says of tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TokenUsage:
    """The tokens of a prompt, and how many of them the server found in its cache; None where it does not say."""

    num_prompt: int | None
    num_cached: int | None


@dataclass(frozen=True)
class Route:
    """A route. limits: names of the largest number of new tokens; the first is set. usage: reads an answer's."""

    limits: tuple[str, ...]
    usage: Callable[[Json], TokenUsage]

    def body(self, recorded: Json, model: str | None, num_new: int, more: Json) -> dict[str, Any]:
        """Make the body that is sent: whole and not streamed, with this many new tokens at most."""
        left_out = ("stream", "stream_options", *self.limits)
        kept = {name: value for name, value in recorded.items() if name not in left_out}
        named = {} if model is None else {"model": model}
        return {**kept, **named, **more, self.limits[0]: num_new}


def _count(value: Any, *names: str) -> int | None:
    """Read a whole number inside of objects; None if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if type(value) is int else None


def _of_openai(kind: str, answer: Json) -> TokenUsage:
    cached = _count(answer, "usage", f"{kind}_tokens_details", "cached_tokens")
    return TokenUsage(_count(answer, "usage", f"{kind}_tokens"), cached)


def _of_messages(answer: Json) -> TokenUsage:
    """Read Anthropic's usage: input_tokens counts tokens that were neither found in the cache nor written to it."""
    found = _count(answer, "usage", "cache_read_input_tokens")
    counts = (_count(answer, "usage", "input_tokens"), found, _count(answer, "usage", "cache_creation_input_tokens"))
    return TokenUsage(None if counts[0] is None else sum(each or 0 for each in counts), found)


ROUTES = {
    "/v1/chat/completions": Route(("max_tokens", "max_completion_tokens"), partial(_of_openai, "prompt")),
    "/v1/completions": Route(("max_tokens",), partial(_of_openai, "prompt")),
    "/v1/responses": Route(("max_output_tokens",), partial(_of_openai, "input")),
    "/v1/messages": Route(("max_tokens",), _of_messages),
}
