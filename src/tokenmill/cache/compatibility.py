"""Compatibility header of saved KV: the fields that must be equal before rows may be used again.

If all fields but the DESCRIPTIVE ones are equal, the rows were computed as this engine computes, and may be shared with
other texts. If only the fields of MEANING are equal, a session may still be opened; its rows are then never shared.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.errors import SnapshotError
from tokenmill.value_reader import brief

__all__ = ["check_compatible", "shared_fields"]

DESCRIPTIVE = ("model", "versions")
"""Fields for the reader, which are never compared."""
MEANING = ("fingerprint", "shape", "rope", "cache_format")
"""Fields that must be equal: otherwise the rows have no meaning here."""
PRECISION = ("dtype", "scheme")
"""Fields that may differ only with `convert`, because the text may then differ too."""


def shared_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that must all be equal before rows may be shared."""
    return {name: value for name, value in header.items() if name not in DESCRIPTIVE}


def check_compatible(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], convert: bool) -> bool:
    """Whether rows with the header `theirs` may be shared; SnapshotError, by field, where they cannot even be used."""
    for name in MEANING:
        if theirs[name] != ours[name]:
            difference = _difference(name, theirs[name], ours[name])
            raise SnapshotError(f"{path} is of another model or setting: {difference}")
    for name in PRECISION:
        if theirs[name] != ours[name] and not convert:
            raise SnapshotError(
                f"{path} has {name} {brief(theirs[name])} and this engine {ours[name]!r}: the text would not be the "
                f"same; load the model with {name}={brief(theirs[name])}, or open it with convert"
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
