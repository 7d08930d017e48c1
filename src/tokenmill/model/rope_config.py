"""The numbers of rotary positions, as a config.json gives them. rope.py makes the table."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, Rope
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief

log = logging.getLogger(__name__)

# Numbers of other programs, by kind, of which transformers warns and which it does not read. DeepSeek's attn_factor
# multiplies the usual attention factor.
_UNUSED = {"yarn": ("attn_factor", "finetuned", "extrapolation_factor")}
_PART = "partial_rotary_factor"
_TRAINED = ("llama3", "yarn", "longrope")  # kinds whose trained length may stand beside the rope parameters
_YARN_OPTIONAL = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_ZERO_IS_NONE = ("mscale", "mscale_all_dim")  # as transformers has it, and Devstral 2 writes it

KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: (required numbers, optional numbers)
    "default": ((), ()),
    "linear": (("factor",), ()),
    "factors": (("factors",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (("original_max_position_embeddings",), _YARN_OPTIONAL),
    "longrope": (("short_factor", "long_factor", "original_max_position_embeddings"), ("factor", "attention_factor")),
}


def yarn_attention_factor(stretch: float, weight: float = 1.0) -> float:
    """Compute YaRN's factor on cosines and sines where a config gives no other value."""
    return 1.0 if stretch <= 1 else 0.1 * weight * math.log(stretch) + 1.0


def read_rope(reader: ConfigReader, head_dim: int, context: int) -> Rope:
    """Read `rope_parameters` (transformers 5) or `rope_scaling` beside `rope_theta`; strict about both."""
    older, newer = reader.inside("rope_scaling"), reader.inside("rope_parameters")
    # transformers takes one of the two, and never a mixture.
    return rope_within(reader, older.values or newer.values, head_dim, context)


@dataclass(frozen=True)
class Beside:
    """The keys beside the rope parameters of a kind of layers. theta: the key of the base. default: the base where no
    key gives it. scaled: whether `rope_scaling` is meant for this kind.
    """

    theta: str
    default: float
    scaled: bool


_PLAIN = Beside("rope_theta", 10000.0, scaled=True)


def default_rope(reader: ConfigReader, parameters: Mapping[str, Any]) -> None:
    """Give these rope parameters, the family's defaults, to a config that has none.

    Their base goes before a base beside them in transformers 5, and did not in transformers 4: where the two differ the
    config is refused when the rope is read.
    """
    if not reader.take("rope_scaling", None) and reader.take("rope_parameters", None) is None:
        reader.values = {**reader.values, "rope_parameters": parameters}


def rope_within(
    reader: ConfigReader, given: Mapping[str, Any], head_dim: int, context: int, beside: Beside | None = None
) -> Rope:
    """Read a rope from one object of rope parameters and the keys beside it."""
    beside = beside or _PLAIN
    outer_length = reader.take("original_max_position_embeddings", None)  # which goes first, as in transformers
    scaling = ValueReader(given, "config.json: rope parameters", CheckpointError)
    if outer_length is not None and scaling.take("rope_type", scaling.take("type", None)) in _TRAINED:
        scaling.values = {**given, "original_max_position_embeddings": outer_length}
    theta = _agreed(reader, beside.theta, scaling.number("rope_theta", None, 1.0), beside.default, minimum=1.0)
    part = _agreed(reader, _PART, scaling.number(_PART, None, 0.0, 1.0), 1.0, maximum=1.0)
    if _PART not in reader.defaults and part != 1.0:
        raise CheckpointError(
            f"{reader.where}: {_PART} is {part}: transformers rotates whole heads in this family, other programs a part"
        )
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"config.json: rope type {brief(kind)} is not implemented: only {', '.join(KINDS)}")
    numbers = _read_numbers(scaling, kind, context)
    if kind in _RESOLVE:
        numbers = _RESOLVE[kind](numbers, context)
    dim = int(head_dim * part)
    if dim < 2 or dim % 2 or dim > head_dim or (kind == "dynamic" and dim == 2):
        raise CheckpointError(f"config.json: {dim} rotary entries of head_dim {head_dim}: an even number is needed")
    for key in ("short_factor", "long_factor"):
        if key in numbers and len(numbers[key]) != dim // 2:
            raise CheckpointError(f"config.json: {key} has {len(numbers[key])} numbers, and {dim // 2} are needed")
    if kind == "llama3" and numbers["low_freq_factor"] > numbers["high_freq_factor"]:
        raise CheckpointError("config.json: low_freq_factor of rope type 'llama3' exceeds its high_freq_factor")
    return Rope(dim, theta, kind, tuple(sorted(numbers.items())))


def _read_numbers(scaling: ValueReader, kind: str, context: int) -> dict[str, Any]:
    """Read the numbers that this kind of rope needs or may have, and refuse others."""
    required, optional = KINDS[kind]
    numbers: dict[str, Any] = {}
    for key in (*required, *optional):
        missing = context if kind != "dynamic" and key == "original_max_position_embeddings" else None
        value = _read_number(scaling, key, missing)
        if value is None and key in required:
            raise CheckpointError(f"config.json: rope type {kind!r} needs {key!r}, which is missing")
        if value is not None:
            numbers[key] = value
    unused = {key: value for key in _UNUSED.get(kind, ()) if (value := scaling.take(key, None)) is not None}
    if unused:
        log.warning("config.json: %s of rope type %r has no effect, as in transformers", brief(unused), kind)
    for key, value in scaling.values.items():
        if key not in scaling.read and value is not None:
            raise CheckpointError(
                f"config.json: rope type {kind!r} has no parameter {brief(key)} (it is {brief(value)})"
            )
    return numbers


def rope_of(reader: ConfigReader) -> Rope:
    """Read the rope and the sizes that it needs, for a family in which some layers alone have the rope."""
    return read_rope(reader, reader.head_dim(), reader.context())


def _resolve_yarn(numbers: dict[str, Any], context: int) -> dict[str, Any]:
    """Compute YaRN's numbers, of which a config may give some and leave others to follow."""
    stretch = numbers.get("factor") or context / numbers["original_max_position_embeddings"]
    mscale, all_dim, factor = (numbers.get(key) for key in ("mscale", "mscale_all_dim", "attention_factor"))
    if factor is None and mscale and all_dim:
        factor = yarn_attention_factor(stretch, mscale) / yarn_attention_factor(stretch, all_dim)
    kept = {key: value for key, value in numbers.items() if not key.startswith("mscale")}
    kept = {"beta_fast": 32.0, "beta_slow": 1.0} | kept
    return kept | {"factor": stretch, "attention_factor": yarn_attention_factor(stretch) if factor is None else factor}


def _resolve_longrope(numbers: dict[str, Any], context: int) -> dict[str, Any]:
    """Add the factor on cosines and sines, which follows the stretched length, whichever list of divisors is used."""
    trained = numbers["original_max_position_embeddings"]
    stretch = numbers.pop("factor", None) or context / trained
    if "attention_factor" in numbers:
        return numbers
    if trained == 1:
        raise CheckpointError("config.json: rope type 'longrope' was trained on more than a position")
    return {**numbers, "attention_factor": 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch, trained))}


# Kind → (its numbers, the context) → all numbers that are computed with.
_RESOLVE: dict[str, Callable[[dict[str, Any], int], dict[str, Any]]] = {
    "dynamic": lambda numbers, context: {**numbers, "max_position_embeddings": context},
    "yarn": _resolve_yarn,
    "longrope": _resolve_longrope,
}


def _read_number(scaling: ValueReader, key: str, default: int | None) -> Any:
    """Read one parameter of a kind: a length, a switch, a list of divisors, or a number."""
    if scaling.take(key, default) is None:
        return None
    if key == "original_max_position_embeddings":
        return scaling.count(key, default, maximum=MAX_POSITIONS)
    if key == "truncate":
        return scaling.flag(key)
    if key in ("factors", "short_factor", "long_factor"):
        return tuple(scaling.numbers(key, 1e-6, 1e6))
    if key in _ZERO_IS_NONE and scaling.values[key] == 0:
        return None
    return scaling.number(key, None, 1e-6, 1e6)


def _agreed(
    reader: ConfigReader, key: str, inner: float | None, default: float, minimum: float = 0.0, maximum: float = 1e30
) -> float:
    """Read a number that may stand inside the rope parameters, beside them, in both places alike, or in neither."""
    name = reader.name(key)
    if inner is None:
        return reader.number(key, default, minimum, maximum)
    reader.read.add(name)
    outer = reader.number(key, None, minimum, maximum) if reader.given(key) else inner
    if inner != outer:
        raise CheckpointError(f"config.json: {name} is {outer!r}, and {inner!r} in the rope parameters")
    return inner
