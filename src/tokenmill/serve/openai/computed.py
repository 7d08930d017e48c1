"""Computing what writes no text (vectors, scores) for a client that may leave, in a thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeVar

from tokenmill.engine.engine import Engine
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.serve.http.errors import ApiError, Json, about
from tokenmill.serve.loop.answer import unless_disconnected
from tokenmill.serve.loop.service import Call

T = TypeVar("T")
MAX_TEXTS = 2048  # as OpenAI's API has it


async def computed(call: Call, compute: Callable[[Engine, Any, Json], T], given: Any, do: Json) -> T:
    """Call compute(engine, given, do) in a thread, unless the client leaves. do: gets the tenant's salt, the adapter
    that the request names as its model, and what says that the client has left.
    """
    is_gone = Event()
    adapter = call.service.model.adapter(call.body.model)
    do = {**do, "salt": call.tenant, "adapter": adapter, "is_given_up": is_gone.is_set}
    try:
        work = call.service.waiting(call.request, compute, call.service.engine, given, do)
        return await unless_disconnected(call.request, work)
    finally:
        is_gone.set()


@contextmanager
def refusals(engine: Engine, field: str) -> Iterator[None]:
    """Turn refusals into ApiError: of a request about the field, of a program or of a model's files about the model."""
    try:
        with about(field):
            yield
    except (ConfigError, CheckpointError) as error:
        folder = locate(engine.config.model, offline=True).parent  # what lies where is nobody's business
        raise ApiError(400, str(error).replace(f"{folder}/", ""), code="unsupported_model") from None
