"""Receipts read from JSON: every key, type and range is checked before anything is made of it; no other key is taken.

A later version whose receipts have another format reads these, too.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenmill.errors import ConfigError, ReceiptError
from tokenmill.receipts.receipt import FORMAT, WITHOUT, Receipt, hash_of
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.value_reader import ValueReader, brief, refuse_constant, without_doubles

MAX_SIZE = 64_000_000
"""Characters of one receipt, far above what the longest context makes of it."""

ENGINE_TEXTS = ("program", "dtype", "scheme", "cache_format", "kernel", "fuse", "device", "build", "machine", "torch")
COMPILE = ("mode", "phases", "backend")
REASONS = ("eos", "stop", "length")
HEX = frozenset("0123456789abcdef")


def read_receipt(text: str | bytes, where: str = "the receipt") -> Receipt:
    """Read a receipt. ReceiptError, with the field, for what is damaged, impossible or of another format."""
    return checked_receipt(parsed(text, where), where)


def parsed(text: str | bytes, where: str) -> Any:
    """Parse JSON strictly: no key twice, no NaN, no number beyond a float."""
    if len(text) > MAX_SIZE:
        raise ReceiptError(f"{where} has {len(text):,} characters: a receipt has at most {MAX_SIZE:,}")
    try:
        return json.loads(text, object_pairs_hook=without_doubles, parse_constant=refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ReceiptError(f"{where} is cut or damaged: no JSON ({error or type(error).__name__})") from None


def checked_receipt(document: Any, where: str = "the receipt") -> Receipt:
    """Check a parsed receipt. ReceiptError names the field. Whether its hash is right, `Receipt.is_changed` says."""
    try:
        return _checked(document, where)
    except RecursionError:
        raise ReceiptError(f"{where} has values that are nested too deep") from None


def _checked(document: Any, where: str) -> Receipt:
    reader = ValueReader(document, where, ReceiptError, is_ours=True)
    if type(number := reader.take("receipt")) is not int or number != FORMAT:
        raise ReceiptError(
            f"{where} has format {brief(number)}, and this tokenmill reads {FORMAT}: "
            "a newer one may read it (pip install --upgrade tokenmill)"
        )
    found = reader.text("hash")
    receipt = _read(reader)
    reader.refuse_unread(document)
    if missing := receipt.facts.keys() - document.keys():
        raise ReceiptError(f"{where} has no {min(missing)!r}, which is required, even where it is null")
    try:
        return replace(receipt, is_changed=found != hash_of(document))
    except (ValueError, TypeError) as error:  # of what was given as an object: infinity, or what JSON does not have
        raise ReceiptError(f"{where} cannot be written as JSON: {error}") from None


def _read(reader: ValueReader) -> Receipt:
    sampling = _sampling(reader.inside("sampling", required=True))
    prompt, tokens = _ids(reader, "prompt"), _ids(reader, "tokens")
    if not prompt:
        raise reader.refuse("prompt", [], "at least one token id")
    if len(tokens) > (most := sampling.max_new_tokens or 0):
        raise reader.refuse("tokens", f"{len(tokens)} token ids", f"at most max_new_tokens, which is {most}")
    stop = reader.take("stop_reason", None)
    if not (stop is None or isinstance(stop, str) or type(stop) is int):
        raise reader.refuse("stop_reason", stop, "a text, a token id, or null")
    return Receipt(
        reader.text("tokenmill"),
        _model(reader.inside("model", required=True)),
        _engine(reader.inside("engine", required=True)),
        sampling,
        prompt,
        tokens,
        reader.text("text", longest=math.inf),
        reader.expect("finish_reason", ..., *REASONS),
        stop,
        _session(reader, len(prompt)),
    )


def _model(reader: ValueReader) -> dict[str, Any]:
    files = reader.inside("files", required=True).values
    for name, digest in files.items():
        _check_digest(reader, f"files.{name}", digest)
    template = reader.take("chat_template", None)
    if template is not None:
        _check_digest(reader, "chat_template", template)
    found = {"name": reader.text("name"), "files": dict(files), "chat_template": template}
    if reader.take("adapter", None) is not None:
        adapter = reader.inside("adapter")
        _check_digest(adapter, "sha256", adapter.take("sha256"))
        found["adapter"] = {"name": adapter.text("name"), "sha256": adapter.take("sha256")}
        adapter.refuse_unread(adapter.values)
    reader.refuse_unread(reader.values)
    return found


def _check_digest(reader: ValueReader, key: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) != 64 or not HEX.issuperset(value):
        raise reader.refuse(key, value, "64 hexadecimal digits")


def _engine(reader: ValueReader) -> dict[str, Any]:
    found: dict[str, Any] = {name: reader.text(name) for name in ENGINE_TEXTS}
    found["compile"] = reader.entries("compile", str)
    if len(found["compile"]) != len(COMPILE):
        raise reader.refuse("compile", found["compile"], f"{', '.join(COMPILE)}")
    found["threads"] = reader.count("threads", None)
    found["long_rope"] = reader.flag("long_rope")
    reader.refuse_unread(reader.values)
    return found


def _session(reader: ValueReader, num_prompt: int) -> dict[str, Any] | None:
    if reader.take("session", None) is None:
        return None
    inner = reader.inside("session")
    places = {name: inner.count(name, minimum=0, maximum=num_prompt) for name in ("answer_from", "constrained_from")}
    before = inner.take("before", None)
    if before is not None:
        _sampling(inner.inside("before"))
    inner.refuse_unread(inner.values)
    return {**places, "before": before}


def sampling_of(facts: Mapping[str, Any]) -> SamplingParams:
    """Read the settings that `sampling_facts` wrote."""
    return _sampling(ValueReader(facts, "sampling", ReceiptError, is_ours=True))


def _sampling(reader: ValueReader) -> SamplingParams:
    known = [name for name in SamplingParams.__dataclass_fields__ if name not in WITHOUT]
    given = {name: reader.take(name, None) for name in known if name in reader.values}
    reader.refuse_unread(reader.values)
    for name in ("max_new_tokens", "seed"):
        reader.count(name, None, minimum=-1, maximum=2**63 - 1)
    if isinstance(bias := given.get("logit_bias"), dict):
        given["logit_bias"] = {key: -math.inf if value == "-inf" else value for key, value in bias.items()}
    try:
        return SamplingParams(**given)
    except ConfigError as error:
        raise ReceiptError(f"{reader.where}: {error}") from None


def _ids(reader: ValueReader, key: str) -> tuple[int, ...]:
    if not isinstance(value := reader.take(key), list):
        raise reader.refuse(key, value, "a list of token ids")
    return reader.token_ids(key)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{brief(number)[1:-1]} is no number that a receipt can have")
    return value
