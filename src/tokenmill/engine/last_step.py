"""The last step of an engine that is closed: where ranks do not finish it, they are ended."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from tokenmill.loader.loaded import LoadedModel
from tokenmill.program.forward import Program

LAST_STEP_S = 3.0


@contextmanager
def ended_in_time(loaded: LoadedModel) -> Iterator[None]:
    """For as long as somebody waits for the last step: end the ranks where one of them does not go on, such as one
    that is stopped. The step fails by that.
    """
    if getattr(loaded, "program", None) is None or loaded.resolved.config.tensor_parallel == 1:
        yield
        return
    late = threading.Timer(LAST_STEP_S, _end_ranks, [weakref.ref(loaded.program)])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()
        late.join()  # a thread that is left at the end of the interpreter would end the process by an abort


def _end_ranks(known: "weakref.ref[Program]") -> None:
    if (program := known()) is not None:
        program.close()
