"""Forked processes: the thread of this one that was forked, and how a child lets go of what belongs to its parent.

An engine is used in the process that loaded it. Forks are noted from the first import of tokenmill on, before torch is
imported.
"""

import os
from _thread import get_ident
from _weakref import ref  # weakref itself is a file, and would be imported before Ctrl-C is guarded

TYPE_CHECKING = False  # as in __init__.py
if TYPE_CHECKING:
    from typing import Protocol

    class Inherited(Protocol):
        """An object that a forked child has a copy of, and cannot use."""

        def forget(self) -> None:
            """Let go, in the child, of what the parent still uses."""


_forked: list[int] = []  # identifiers of threads; the process of a thread that forks again has another entry
_inherited: "list[ref[Inherited]]" = []


def is_forked_thread() -> bool:
    """Tell whether the thread that calls it is the one that went on when this process was forked."""
    return get_ident() in _forked


def forget_in_child(owner: "Inherited") -> None:
    """Have `forget` of an object called in every child that is forked from this process."""
    _inherited.append(ref(owner, _inherited.remove))


def _note_fork() -> None:
    _forked.append(get_ident())
    for known in list(_inherited):
        if (owner := known()) is not None:
            owner.forget()


os.register_at_fork(after_in_child=_note_fork)
