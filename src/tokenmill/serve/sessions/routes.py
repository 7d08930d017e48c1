"""The routes by which clients keep texts by name."""

from collections.abc import Callable
from typing import TypeVar

from tokenmill.engine.engine import Engine
from tokenmill.engine.session import Session
from tokenmill.serve.facts.tokens import TokenizeBody, encode, warnings_for
from tokenmill.serve.http.errors import ApiError, TooLong, about
from tokenmill.serve.loop.service import Call
from tokenmill.serve.sessions.sessions import Json, Sessions

T = TypeVar("T")


async def save(call: Call) -> Json:
    """Keep a prompt or a conversation, with its rows."""
    service, body = call.service, call.body
    service.model.check(body)
    kept = _held(call)
    ids = await service.in_thread(call.request, _text, service.engine, body)
    begin: Callable[[bytes], Session] = lambda who: kept.begin(who, call.name, ids)  # noqa: E731
    saved = await _with_rows(call, begin, lambda who, session: kept.save(who, call.name, session))
    return saved | warnings_for(service.engine, body)


async def restore(call: Call) -> Json:
    """Load what was saved; requests that begin with it find its rows."""
    kept, name = _held(call), call.name
    return await _with_rows(call, lambda who: kept.open(who, name), lambda who, one: kept.hold(who, name, one))


async def erase(call: Call) -> Json:
    """Forget it."""
    kept, tenant = _held(call), call.tenant
    return await call.service.driver.call(lambda: kept.erase(tenant, call.name))


def _held(call: Call) -> Sessions:
    call.service.check_ready()
    if call.service.sessions is None:
        raise ApiError(404, "this server keeps no sessions", code="no_sessions")
    return call.service.sessions


async def _with_rows(call: Call, make: Callable[[bytes], Session], do: Callable[[bytes, Session], T]) -> T:
    """Make a session, have its rows beside what else runs, and do something with it."""
    driver, tenant = call.service.driver, call.tenant
    with call.service.admission.slots(1, tenant):
        session = await driver.call(lambda: make(tenant))
        return await driver.keep(session, tenant, lambda: do(tenant, session))


def _text(engine: Engine, body: TokenizeBody) -> list[int]:
    """Return the tokens that a session may keep."""
    ids = encode(engine, body)
    field = "prompt" if body.messages is None else "messages"
    if len(ids) > engine.config.max_length:
        raise TooLong(len(ids), engine.config.max_length, field)
    with about(field):
        return engine.encode(ids)  # which refuses none at all
