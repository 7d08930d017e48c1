"""The thread of this process that was forked, if any: noted from the first import of tokenmill on, before torch is
imported.
"""

import os
from _thread import get_ident

_forked: list[int] = []  # identifiers of threads; the process of a thread that forks again has another entry


def is_forked_thread() -> bool:
    """Whether the thread that calls it is the one that went on when this process was forked."""
    return get_ident() in _forked


os.register_at_fork(after_in_child=lambda: _forked.append(get_ident()))
