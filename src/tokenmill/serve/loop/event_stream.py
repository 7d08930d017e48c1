"""An answer as a stream: server-sent events, or lines of JSON."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenmill.engine.outputs import Piece
from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.http.disconnect import PING, Disconnected, unless_disconnected
from tokenmill.serve.http.endings import ANSWER_ID
from tokenmill.serve.http.errors import EngineDied
from tokenmill.serve.loop.resumption import EXTENSION, Resumption, Update, Written, resumption_of
from tokenmill.serve.loop.service import tenant_of
from tokenmill.serve.loop.work import Work
from tokenmill.serve.request.writer import Format

Events = AsyncGenerator[tuple[bytes, Update | None], None]


class EventStream(Response):
    """The events of an answer. Places are taken when it is sent, and given back however that ends.

    One task writes all of it, without the layers of a StreamingResponse, since what an event costs is taken from the
    processors that compute the next tokens.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=work.media_type)
        del self.headers["content-length"]
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response. What is refused before the first byte has a status of its own."""
        service, request = self._work.service, self._work.request
        with service.admission.slots(self._work.num_slots, tenant_of(request)):
            prepared, form = await unless_disconnected(request, self._work.begin())
            steps, written = service.driver.pieces(prepared.request, form.id), resumption_of(scope)
            events = _events(steps, form, prepared.request.sequences, written)
            begun = None if written is None else Update(begun={**form.begun, "seed": self._work.body.seed})
            scope.setdefault("state", {}).update({ANSWER_ID: form.id, PING: form.keep_alive})
            with suppress(Disconnected):
                await unless_disconnected(request, self._send(events, begun, send))

    async def _send(self, events: Events, begun: Update | None, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start if begun is None else start | {EXTENSION: begun})
        async with aclosing(events):
            async for event, update in events:
                message = {"type": "http.response.body", "body": event, "more_body": True}
                await send(message if update is None else message | {EXTENSION: update})
        await send({"type": "http.response.body", "body": b""})


async def _events(
    steps: AsyncGenerator[list[Piece], None], form: Format, sequences: list[Sequence], written: Resumption | None
) -> Events:
    """The bytes that are written for each step, and others whenever nothing has come for a while.

    written: what was written of it before; then each comes with an Update. A piece for which nothing is written is told
    with the next one that the client sees.
    """
    unseen: list[Written] = []

    def update(**news: Any) -> Update | None:
        return None if written is None else Update(**news)

    try:
        if (written is None or not written.is_opened) and (opening := b"".join(map(form.event, form.opening()))):
            yield opening, update(is_opened=True)
        async with aclosing(steps):
            async for new in steps:
                pieces = new if written is None else [piece for piece in new if piece.index not in written.ended]
                chunks = b"".join(form.event(chunk) for piece in pieces for chunk in form.chunks(piece))
                if written is not None:
                    unseen += [_written(piece, sequences[piece.index]) for piece in pieces]
                if chunks:
                    told, unseen = tuple(unseen), []
                    yield chunks, update(pieces=told, is_opened=True)
                elif not new:
                    yield form.keep_alive, update()
        yield b"".join([*map(form.event, form.closing()), form.ending]), update(is_over=True)
    except Exception as error:  # noqa: BLE001  (the client hears of it)
        yield form.failure(error), update(is_over=True, has_failed=isinstance(error, EngineDied))


def _written(piece: Piece, sequence: Sequence) -> Written:
    return Written(piece.index, piece.tokens, piece.done is not None, sequence.num_cached_tokens or 0)
