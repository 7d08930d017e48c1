"""Names of models, times, durations and `options`, as Ollama writes them.

Options that are settings become fields, by their names over HTTP. The others either change nothing, which is said, or
would change the text, and are refused.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.fields import LATEST, SETTINGS, nearest
from tokenmill.serve.request.prompt import Model
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams
from tokenmill.value_reader import brief

VERSION = "0.13.0"  # of Ollama's API that these routes follow; clients refuse versions that are too old for them
DURATION = re.compile(r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+|[-+]?\d+(?:\.\d*)?", re.ASCII)
MAX_OPTIONS = 100  # clients have some 30; to look for names that are like an unknown one takes milliseconds
AT_START = "is chosen when the server starts"
WITHOUT_EFFECT = {
    **dict.fromkeys(("num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "num_gqa"), AT_START),
    **dict.fromkeys(("low_vram", "f16_kv", "use_mmap", "use_mlock"), AT_START),
    **dict.fromkeys(("logits_all", "vocab_only", "embedding_only"), AT_START),
    "num_keep": "is about texts that are shortened, and no text is",
    "mirostat_tau": "is about mirostat",
    "mirostat_eta": "is about mirostat",
    "penalize_newline": "has no effect in Ollama either",
}
"""Options that change nothing of a text here, with the reason."""
MAX_COMPARED = 5  # unknown options that are compared with known ones
NEUTRAL: Mapping[str, tuple[float, ...]] = {"typical_p": (0, 1), "tfs_z": (0, 1), "mirostat": (0,)}
"""Samplers that there are not, with the values that turn them off."""
AS_FITS = (-1, -2)  # values of num_predict
OWN = ("num_ctx", "num_predict", "repeat_last_n")  # which are read here
PENALTIES = {"repeat_penalty": 1, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Penalties → the values that turn them off."""

TYPES = {entry.name: entry.type for entry in fields(SamplingParams)}
NAMES = {
    name: setting
    for setting, field in HTTP_FIELDS.items()
    if field != "n"
    for name in (field, *SETTINGS[setting].http_aliases)
}
"""Names of options → settings."""


def tagged(name: str) -> str:
    """Return a name with its tag, which is `latest` where it has none."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{LATEST}"


def check_served(asked: str, model: Model) -> None:
    """Raise ApiError 404 for another model than the served one, and its adapters. Letters may be of either case, as in
    Ollama.
    """
    if tagged(asked).casefold() not in [tagged(name).casefold() for name in (model.name, *model.adapters)]:
        there = " and ".join(map(repr, [model.name, *model.adapters][:20]))
        raise ApiError(
            404, f"model {brief(asked)} not found: {there} is served here, and `tokenmill serve` serves another"
        )


def now() -> str:
    """Return the time, for `created_at`."""
    return written(datetime.now(UTC))


def written(time: datetime) -> str:
    """Write a time in UTC as RFC 3339 has it."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Return a duration, which is at least one nanosecond: clients divide by it."""
    return max(round(seconds * 1e9), 1)


def unloads(keep_alive: float | str | None) -> bool:
    """Return whether a request wants the model to be unloaded after it. ApiError for a wrong duration."""
    if keep_alive is None or keep_alive == "":
        return False
    if isinstance(keep_alive, str):
        if not DURATION.fullmatch(keep_alive):
            message = f'keep_alive = {brief(keep_alive)} is not allowed: seconds, or a duration such as "5m"'
            raise ApiError(400, message, "keep_alive")
        return not any(digit in keep_alive for digit in "123456789")
    return keep_alive == 0


FOR_EVER_S = 100 * 365 * 86400.0
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PARTS = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)?", re.ASCII)


def keep_alive_s(given: Any) -> tuple[float | None] | None:
    """Read how long a model is to stay loaded, in seconds, in a tuple: (None,) is for ever, which a negative duration
    stands for, or one of a century. None where that is not said, or is no duration, which `unloads` refuses.
    """
    if given is None or given == "" or isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        seconds = float(given) if abs(given) < FOR_EVER_S else math.copysign(FOR_EVER_S, given > 0)
    elif isinstance(given, str) and DURATION.fullmatch(given):
        seconds = sum(float(number) * SECONDS[unit or "s"] for number, unit in PARTS.findall(given))
        seconds = -seconds if given.startswith("-") else seconds
    else:
        return None
    return (seconds,) if 0 <= seconds < FOR_EVER_S else (None,)


def take_options(options: Mapping[str, Any], ask: Ask, num_positions: int) -> Json:
    """Return the options that are settings, by their names. num_positions: tokens of the longest text."""
    found = Json()
    if len(options) > MAX_OPTIONS:
        raise ApiError(400, f"options: {len(options)} of them are not allowed: at most {MAX_OPTIONS}", "options")
    for name, value in options.items():
        if value is None:
            continue
        if name in NAMES:
            found[name] = _whole(name, value)
        elif name in WITHOUT_EFFECT:
            ask.warn(f"options.{name} changes nothing here: it {WITHOUT_EFFECT[name]}")
        elif name in NEUTRAL:
            _check_neutral(name, value)
        elif name not in OWN:
            _note_unknown(name, ask)
    if "num_predict" in found:
        found["num_predict"] = _limit(found["num_predict"])
    if (num_ctx := _count(options, "num_ctx")) is not None and num_ctx > num_positions:
        ask.warn(
            f"options.num_ctx = {num_ctx} is more than the {num_positions} tokens that this server was started with, "
            "which stay the limit: `--max-length` sets it"
        )
    if (last_n := _count(options, "repeat_last_n")) is not None:
        found |= _last_n(last_n, options, num_positions)
    return found


def spelled_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the field of each option that is a setting, and the option's place in the body."""
    return {HTTP_FIELDS[NAMES[name]]: f"options.{name}" for name in NAMES if options.get(name) is not None}


def _whole(name: str, value: Any) -> Any:
    """Return a number as its setting has it: JSON's 40.0 is 40, as it is to Ollama."""
    is_whole = isinstance(value, float) and value.is_integer() and TYPES[NAMES[name]] in (int, int | None)
    return int(value) if is_whole else value


def _count(options: Mapping[str, Any], name: str) -> int | None:
    value = options.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is not None and type(value) is not int:
        raise ApiError(400, f"options.{name} = {brief(value)} is not allowed: a whole number", "options")
    return value


def _limit(value: Any) -> Any:
    if type(value) is int and value < 1:
        if value not in AS_FITS:
            allowed = "at least 1, or -1 or -2 for as many tokens as fit"
            raise ApiError(400, f"options.num_predict = {value} is not allowed: {allowed}", "options")
        return -1
    return value


def _check_neutral(name: str, value: Any) -> None:
    if value not in NEUTRAL[name]:
        *_, off = NEUTRAL[name]
        message = f"options.{name} = {brief(value)} is not served: leave it out, or give {off}, which turns it off"
        raise ApiError(400, message, "options", "unsupported_parameter")


def _note_unknown(name: str, ask: Ask) -> None:
    known = (*NAMES, *WITHOUT_EFFECT, *NEUTRAL, *OWN)
    is_new = len(ask.unknown) < MAX_COMPARED
    if is_new and (meant := nearest(name, known)) is not None:
        raise ApiError(400, f"there is no option {name!r}: is {meant!r} meant?", "options", "unknown_parameter")
    ask.unknown.append(f"options.{name}")


def _last_n(last_n: int, options: Mapping[str, Any], num_positions: int) -> Json:
    """Return the penalties that are turned off, by 0. They are over the whole text here, which is what -1 means."""
    wanted = [name for name, off in PENALTIES.items() if options.get(name) not in (None, off)]
    if last_n == 0:
        return {name: PENALTIES[name] for name in wanted}
    if wanted and 0 < last_n < num_positions:
        message = (
            f"options.repeat_last_n = {last_n} is not served beside {wanted[0]}: penalties are over the whole text, "
            "so give -1, which says so, or 0 for none"
        )
        raise ApiError(400, message, "options", "unsupported_parameter")
    if last_n < -1:
        raise ApiError(400, f"options.repeat_last_n = {last_n} is not allowed: -1 for the whole text, or 0", "options")
    return {}
