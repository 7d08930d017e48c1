"""One replica: an engine and the server's application around it, without a socket.

A gate has checked keys and limits before a request comes here, and hands on the key's digest.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Message

from tokenmill.engine.engine import Engine
from tokenmill.serve.http.errors import EngineDied
from tokenmill.serve.loop.resumption import EXTENSION, Resumption
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Served, use_routes


class Mill:
    """One replica: it answers requests as the server does, and goes on with streams of other replicas."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self._served = Served(engine, options)
        self._served.begin()

    async def warm_up(self) -> None:
        """Do what the first request would wait for."""
        await use_routes(self._served.app)

    async def answer(
        self, scope: dict[str, Any], body: bytes, written: Resumption | None = None
    ) -> AsyncGenerator[list[Message], None]:
        """Yield the messages of ASGI for a request, as they come together. Closed early, it cancels the request."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        incoming = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await asyncio.get_running_loop().create_future()  # nobody leaves: then the task is cancelled
            raise AssertionError

        scope = {**scope, "extensions": {} if written is None else {EXTENSION: written}}
        task = asyncio.ensure_future(self._served.app(scope, receive, messages.put))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            is_over = False
            while not is_over:
                found = [await messages.get()]
                while not messages.empty():
                    found.append(messages.get_nowait())
                is_over = None in found
                if told := [message for message in found if message is not None]:
                    yield told
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # it was answered with 500

    def check_health(self) -> None:
        """Raise EngineDied if a step has raised or hangs: this replica is of no use any more."""
        driver = self._served.driver
        if driver.error is not None:
            raise driver.error
        if driver.is_hung:
            raise EngineDied("the engine hangs: a step takes much longer than any before it")

    def close(self) -> None:
        """End what still runs."""
        self._served.end()
