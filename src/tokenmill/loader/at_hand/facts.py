"""The facts of one model that `tokenmill list` shows, read from its headers alone."""

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.loader.at_hand import BASE, EMBEDDING, INSTRUCT
from tokenmill.loader.at_hand.headers import KnownHeaders, is_instruct
from tokenmill.loader.runs_here import runs_with
from tokenmill.weights.outline import read_outline

_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "intermediate_size", "vocab_size")
_QUANTISED = re.compile(
    r"[-_. ](i1|[iq]*q\d\w*|bf16|f16|f32|fp\d+|int\d|w\d+a\d+|\d+bit|gguf|gptq|awq|mlx|imat|bnb|dynamic|packed)"
    r"(?=[-_. ]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Facts:
    """The facts. family: None where the files do not tell it. kind: EMBEDDING for a model without a head, else INSTRUCT
    where the files have a chat template, BASE where they have none, None where that cannot be told. quantization: the
    usual name, such as Q4_K_M, bfloat16, gptq. runs: the program that would be taken, or None with `why_not`. shape:
    sizes that all forms of one model have alike. titles: names that the files give the model.
    """

    family: str | None
    quantization: str
    num_parameters: int | None
    context: int | None
    runs: str | None
    why_not: str | None
    shape: tuple[Any, ...] = ()
    titles: tuple[str, ...] = ()
    kind: str | None = None


def facts_of(path: Path, known: KnownHeaders | None = None) -> Facts:
    """Find the facts of a model by its headers; of one that cannot be opened by an outline of its files."""
    try:
        config, headers = (known or KnownHeaders()).read(path)
    except (TokenmillError, OSError) as error:
        return _of_outline(path, str(error))
    runs = runs_with(config, headers.settings)
    return Facts(
        config.family,
        headers.form or config.dtype,
        headers.num_parameters,
        config.context,
        runs["runs"] and runs["runs"]["program"],
        runs["why_not"],
        (config.family, *(getattr(config, name) for name in _SHAPE)),
        tuple(headers.titles),
        _kind(headers.is_instruct) if config.has_head else EMBEDDING,
    )


def _of_outline(path: Path, why_not: str) -> Facts:
    try:
        outline = read_outline(path)
    except OSError:
        outline = None
    if outline is None:
        return Facts(None, "", None, None, None, why_not)
    types = Counter[str]()
    for tensor in outline.tensors:
        types[tensor.type] += tensor.num_bytes
    kind = types.most_common(1)[0][0] if types else ""
    count = sum(prod(tensor.shape) for tensor in outline.tensors) or None
    return Facts(
        outline.family, kind, count, outline.sizes.get("context"), None, why_not, kind=_kind(is_instruct(path))
    )


def _kind(is_instruct: bool | None) -> str | None:
    return None if is_instruct is None else INSTRUCT if is_instruct else BASE


def plain_title(name: str) -> str:
    """Cut a model's name to the part that its forms have alike, without owner, form and punctuation."""
    last = re.sub(r"\.(gguf|packed)$", "", name.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
    last = re.sub(r"-\d{5}-of-\d{5}$", "", last)
    while (shorter := _QUANTISED.sub("", last)) != last:
        last = shorter
    return re.sub(r"[^a-z0-9]+", "", last.lower())
