"""The compatibility header of saved K and V rows, its comparison with an engine's, and the header of a saved session.

If all fields of the header but the DESCRIPTIVE ones are equal, the rows were computed as this engine computes, and may
be shared with other texts. If only the fields of MEANING are equal, a session may still be opened; its rows are then
never shared.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import unseal
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.value_reader import ValueReader, brief

FORMAT = 3
KEY = "tokenmill"  # in the file's metadata: our header, in JSON
FRONT = json.dumps({"__metadata__": {KEY: '{"facts": {'}})[:-3].encode()
"""The bytes between the length of a file's header and its facts, where `serialise_bytes` has made the file."""
SERIALISED = b'{"__metadata__":{"tokenmill":'
"""The same where `write_snapshot` has made it: safetensors writes no spaces."""

# Fields of the header: not compared; required to be equal; allowed to differ with `convert`, which may change the text.
DESCRIPTIVE = ("model", "versions")
MEANING = ("fingerprint", "shape", "rope", "cache_format")
PRECISION = ("dtype", "scheme")


def begins_with(path: Path, front: bytes) -> bool:
    """Say whether `front` follows the length of the header: the file is ours then, even if it is cut or damaged."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as opened:
            return opened.read(8 + len(front))[8:] == front
    except OSError:
        return False


def read_facts(path: Path) -> dict[str, Any]:
    """Read and check the header alone."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise SnapshotError(f"{path} is a {'directory' if path.is_dir() else 'device or a pipe'}, not a snapshot")
    try:
        with held_interrupts(), safe_open(path, framework="numpy") as opened:
            text = (opened.metadata() or {}).get(KEY)
    except FileNotFoundError as error:
        raise SnapshotError(f"{path} does not exist") from error
    except (SafetensorError, OSError) as error:
        raise SnapshotError(f"{path} is no saved cache, or is damaged: {brief(str(error))}") from error
    if text is None:
        raise SnapshotError(f"{path} is a safetensors file, but no saved cache: it has no {KEY!r} header")
    try:
        return unseal(text, FORMAT)
    except ValueError as error:
        raise SnapshotError(f"{path} {error}") from error


def read_session_facts(path: Path) -> dict[str, Any]:
    """Read and check the header. SnapshotError names the field that is wrong."""
    return dict(checked_header(path, read_facts(path)).values)


def checked_header(path: Path, facts: Mapping[str, Any]) -> ValueReader:
    """Check that every field of the header has the right type and range; return a reader of it."""
    reader = ValueReader(facts, f"{path} is damaged", SnapshotError, is_ours=True)
    for name in ("model", "rope", "cache_format", "dtype", "scheme", "program"):
        reader.text(name)
    for name in ("fingerprint", "shape", "versions", "sampling", "notes"):
        reader.inside(name, required=True)
    if not isinstance(reader.take("tokens"), list):
        raise reader.refuse("tokens", facts["tokens"], "a list of token ids")
    num_tokens = len(reader.token_ids("tokens"))
    reader.count("num_rows", minimum=0, maximum=max(num_tokens - 1, 0))  # the next step feeds the last token
    reader.count("first_row", minimum=0, maximum=facts["num_rows"])
    reader.count("answer_from", minimum=0, maximum=num_tokens)
    reader.count("constrained_from", 0, minimum=0, maximum=num_tokens)  # files from before constraints lack the field
    return reader


def shared_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the fields that must all be equal before rows may be shared."""
    return {name: value for name, value in header.items() if name not in DESCRIPTIVE}


def check_compatible(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], convert: bool) -> bool:
    """Say whether rows with the header `theirs` may be shared; SnapshotError, by field, if they cannot be used."""
    for name in MEANING:
        if theirs[name] != ours[name]:
            raise SnapshotError(f"{path} is of another model or setting: {_difference(name, theirs[name], ours[name])}")
    if not convert and (differ := [name for name in PRECISION if theirs[name] != ours[name]]):
        found = " and ".join(f"{name} {brief(theirs[name])}" for name in differ)
        here = " and ".join(repr(ours[name]) for name in differ)
        wanted = " and ".join(f"{name}={brief(theirs[name])}" for name in differ)
        raise SnapshotError(
            f"{path} has {found} and this engine {here}: the text would not be the same; load the model with {wanted}, "
            "or open it with convert=True"
        )
    return all(theirs.get(name) == value for name, value in shared_fields(ours).items())


def _difference(name: str, theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        parts = [
            f"{brief(key)[1:-1]} {brief(theirs.get(key))}, here {ours.get(key)!r}"
            for key in {**theirs, **ours}
            if theirs.get(key) != ours.get(key)
        ]
        return f"{name}: {'; '.join(parts[:20])}"
    return f"{name} is {brief(theirs)}, here {ours!r}"
