"""`/set NAME VALUE` in `chat`: its meaning, and the known word that a mistyped one is nearest to."""

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.settings.field import setting_of
from tokenmill.settings.sampling_params import ALIASES, SamplingParams

KINDS = {field.name: field.type for field in fields(SamplingParams) if setting_of(field).in_chat}


def read_setting(words: str) -> tuple[str, Any]:
    """Name and value of a sampling setting. TokenmillError for one that there is not; the value is not checked."""
    name, _, value = words.partition(" ")
    name, value = name.replace("-", "_").lstrip("_"), value.strip()
    name = ALIASES.get(name, name)
    known = sorted(KINDS)
    if name not in known or not value:
        problem = f"no setting {name!r}{meant(name, known)}" if name and name not in known else "/set NAME VALUE"
        raise TokenmillError(f"{problem}; the settings are {', '.join(known)}")
    if KINDS[name] == tuple[str, ...]:
        return name, () if value.lower() == "none" else (value,)
    return name, _parse(value)


def meant(word: str, known: list[str]) -> str:
    """A question with the nearest of the known words, or nothing."""
    near = get_close_matches(word, known, n=1) or [each for each in known if word and each.startswith(word)]
    return f" (did you mean {near[0]}?)" if near else ""


def _parse(text: str) -> Any:
    """A number, a truth value, nothing or a text, as it was typed."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
