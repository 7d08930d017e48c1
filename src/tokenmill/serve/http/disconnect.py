"""Work that ends when its client leaves."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

from tokenmill.serve.http.errors import CLIENT_CLOSED, ApiError

PING = "tokenmill.ping"
"""The key, in the state of a request's scope, of bytes that may be written between two events of its stream. Whether a
client is still there that has closed its half of the connection is only known once something is written for it.
"""
T = TypeVar("T")


class Disconnected(ApiError):
    """The client has closed its connection."""


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled if the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected(CLIENT_CLOSED, "the client has gone")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
