"""The replicas that take requests, as the routers of this process know them."""

_known: dict[str, frozenset[str]] = {}


def note_replicas(fleet: str, names: frozenset[str]) -> None:
    """Set the replicas of a fleet. Routers have threads of their own."""
    _known[fleet] = names


def known_replicas(fleet: str) -> frozenset[str]:
    """Those of a fleet; none before its router has begun."""
    return _known.get(fleet, frozenset())
