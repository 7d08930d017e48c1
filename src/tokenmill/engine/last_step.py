"""The last step of an engine that is closed: where ranks do not finish it, they are ended."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tokenmill.loader.loaded import LoadedModel

LAST_STEP_S = 3.0


@contextmanager
def ended_in_time(loaded: LoadedModel) -> Iterator[None]:
    """For as long as somebody waits for the last step: end the ranks where one of them does not go on, such as one
    that is stopped. The step fails by that.
    """
    if getattr(loaded, "program", None) is None or loaded.resolved.config.tensor_parallel == 1:
        yield
        return
    late = threading.Timer(LAST_STEP_S, loaded.program.close)
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()
