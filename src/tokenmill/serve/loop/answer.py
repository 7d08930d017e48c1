"""The answer to a request that generates: an Ask is prepared in a thread and handed to the driver, and what comes is
written as a stream, server-sent events or lines of JSON, or whole.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.errors import DeadlinePassed
from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.http.errors import CLIENT_CLOSED, ApiError, EngineDied
from tokenmill.serve.http.streams import ANSWER_ID, PING
from tokenmill.serve.loop.resumption import EXTENSION, Resumption, Update, Written, resumption_of
from tokenmill.serve.loop.service import Call, Service
from tokenmill.serve.protocols import Route
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.beams import check_search, searched
from tokenmill.serve.request.prepare import Prepared, prepare
from tokenmill.serve.request.progress import PrefillProgress
from tokenmill.serve.request.writer import Writer, with_adapter

MAX_TEXTS = 1024  # of one request
MIN_TIMEOUT_S = 0.001  # for a stream that goes on elsewhere after its time
Events = AsyncGenerator[tuple[bytes, Update | None], None]
T = TypeVar("T")


async def generate(call: Call) -> Response | dict[str, Any]:
    """Answer a body by the parser and the writer of its route: as a stream if that is asked for."""
    service, parse = call.service, call.route.parse
    service.check_ready()
    assert parse is not None, "the route generates"
    ask = parse(call.body, service.model)
    if not isinstance(ask, Ask):
        return ask  # there is nothing to generate
    ask.tenant, ask.adapter = call.tenant, service.model.adapter(call.body.model)
    work = RequestWork(service, call.request, ask, call.route)
    work.check_number()
    if ask.length_penalty is not None:
        check_search(ask)
    if ask.stream:
        return EventStream(work)
    answered = _whole if ask.length_penalty is None else _searched
    with service.admission.slots(work.num_slots, ask.tenant):
        return await unless_disconnected(call.request, answered(work))


@dataclass
class RequestWork:
    """The work on one request, up to the writer of its answer."""

    service: Service
    request: Request
    ask: Ask
    route: Route

    @property
    def num_slots(self) -> int:
        """Texts that run or wait together; the others of the request wait behind them."""
        return min(self.ask.num_sequences, self.service.admission.max_open_of_one)

    def check_number(self) -> None:
        """Raise ApiError for more texts than a request may ask for, or one prompt more than run and wait together."""
        count, max_together = self.ask.num_sequences, self.service.admission.max_open_of_one
        for name, given in (("n", self.ask.sampling.get("n")), ("best_of", self.ask.best_of)):
            if (each := given or 1) > max_together:
                raise ApiError(
                    400, f"{name} = {each} is more than the {max_together} that this server takes at once", name
                )
        if count > max(MAX_TEXTS, max_together):
            message = f"{count} texts are more than the {max(MAX_TEXTS, max_together)} that one request may ask for"
            raise ApiError(400, message, "prompt")

    async def begin(self) -> tuple[Prepared, Writer]:
        """Encode the prompts and check everything; compute log-probabilities of prompts if they are wanted."""
        engine, written = self.service.engine, resumption_of(self.request.scope)
        if self.ask.seed is None:
            self.ask.seed = self.service.options.seed
        if written is not None:
            self._take_up(written)
        prepared = await self.service.in_thread(self.request, prepare, engine.core, self.ask)
        try:
            async with asyncio.timeout(self.ask.timeout_s if prepared.prompt_logprobs else None):
                for sequence, _ in prepared.prompt_logprobs:
                    await self.service.driver.score(sequence)
        except TimeoutError:
            raise DeadlinePassed("the deadline has passed before the prompt was computed") from None
        name = self.ask.adapter or self.service.options.name
        assert self.route.writer is not None, "the route generates"
        form = self.route.writer(self.ask, prepared, name, self._fingerprint, engine.tokenizer)
        if written is not None and self.ask.stream:
            await self.service.in_thread(self.request, self._resume, prepared, form, written)
        return prepared, form

    @property
    def _fingerprint(self) -> str:
        """Return what texts depend on beside the request: of the service, and of the adapter's bytes."""
        return with_adapter(self.service.fingerprint, self.service.engine.core.adapter(self.ask.adapter))

    def _take_up(self, written: Resumption) -> None:
        """Take the seed and the time with which the stream began; a new one gets a seed that can be told."""
        own = self._fingerprint
        if (other := written.begun.get("system_fingerprint", own)) != own:
            message = f"a stream of {other} cannot go on here, where texts may be others: {own}"
            raise ApiError(409, message, code="other_fingerprint")
        if self.ask.seed in (None, -1) or "seed" in written.begun:
            self.ask.seed = written.begun.get("seed", secrets.randbelow(2**32))
        if self.ask.timeout_s is not None:
            self.ask.timeout_s = max(self.ask.timeout_s - written.elapsed_s, MIN_TIMEOUT_S)

    def _resume(self, prepared: Prepared, form: Writer, written: Resumption) -> None:
        sequences = prepared.request.sequences
        self.service.engine.core.inputs.resume(sequences, [written.tokens.get(i, []) for i in range(len(sequences))])
        for index, number in written.num_cached.items():
            sequences[index].num_cached_tokens = number
        texts = {
            index: detokenizer.push(tokens)
            for index, tokens in written.tokens.items()
            if index not in written.ended
            and (detokenizer := self.service.engine.core.inputs.detokenizer(sequences[index])) is not None
        }
        form.resume(written, texts)


async def _whole(work: RequestWork) -> Response:
    prepared, form = await work.begin()
    done: list[Completion | None] = [None] * len(prepared.request.sequences)
    async with aclosing(work.service.driver.pieces(prepared.request, form.id)) as steps:
        async for pieces in steps:
            for piece in pieces:
                done[piece.index] = piece.done
                form.note(piece)
            if form.is_enough:
                break
    completions = [each for each in done if each is not None]  # with log-probabilities they may be long
    return await work.service.in_thread(work.request, lambda: JSONResponse(form.answer(completions)))


async def _searched(work: RequestWork) -> Response:
    prepared, form = await work.begin()
    is_gone = Event()
    try:
        core = work.service.engine.core
        found = await work.service.waiting(work.request, searched, core, work.ask, prepared, is_gone.is_set)
    finally:
        is_gone.set()
    return await work.service.in_thread(work.request, lambda: JSONResponse(form.answer(found)))


class EventStream(Response):
    """The events of an answer. Places are taken when it is sent, and given back however that ends.

    One task writes all of it, without the layers of a StreamingResponse, since what an event costs is taken from the
    processors that compute the next tokens.
    """

    def __init__(self, work: RequestWork) -> None:
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=work.route.protocol.stream
        )
        del self.headers["content-length"]
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, see Response. What is refused before the first byte has a status of its own."""
        service, request = self._work.service, self._work.request
        with service.admission.slots(self._work.num_slots, self._work.ask.tenant):
            prepared, form = await unless_disconnected(request, self._work.begin())
            progress, written = PrefillProgress(prepared.request.sequences), resumption_of(scope)
            has_moved = progress.has_moved if self._work.ask.wants_progress else bool
            steps = service.driver.pieces(prepared.request, form.id, has_moved)
            events = _events(steps, form, prepared.request.sequences, written, progress)
            begun = None if written is None else Update(begun={**form.begun, "seed": self._work.ask.seed})
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
    steps: AsyncGenerator[list[Piece], None],
    form: Writer,
    sequences: list[Sequence],
    written: Resumption | None,
    progress: PrefillProgress,
) -> Events:
    """Yield the bytes that are written for each step, and others whenever nothing has come for a while.

    written: the part of the stream that was written before; then each event comes with an Update. A piece for which
    nothing is written is told with the next one that the client sees.
    """
    unseen: list[Written] = []

    def update(**news: Any) -> Update | None:
        return None if written is None else Update(**news)

    try:
        if (written is None or not written.is_opened) and (opening := b"".join(map(form.event, form.opening()))):
            yield opening, update(is_opened=True)
        shown = 0 if form.wants_progress and (written is None or not written.is_opened) else progress.total
        if shown < progress.total:
            yield form.progress(progress.told(0)), update()
        async with aclosing(steps):
            async for new in steps:
                pieces = new if written is None else [piece for piece in new if piece.index not in written.ended]
                chunks = b""
                if (now := progress.processed) > shown:
                    shown, chunks = now, form.progress(progress.told(now))
                chunks += b"".join(form.event(chunk) for piece in pieces for chunk in form.chunks(piece))
                if written is not None:
                    unseen += [_written(piece, sequences[piece.index]) for piece in pieces]
                if chunks:
                    told, unseen = tuple(unseen), []
                    yield chunks, update(pieces=told, is_opened=True)
                elif not new:
                    yield (form.progress(progress.told(now)) if now < progress.total else form.keep_alive), update()
                if form.is_enough:
                    break
        yield b"".join([*map(form.event, form.closing()), form.ending]), update(is_over=True)
    except Exception as error:  # noqa: BLE001  (the client hears of it)
        yield form.failure(error), update(is_over=True, has_failed=isinstance(error, EngineDied))


def _written(piece: Piece, sequence: Sequence) -> Written:
    return Written(piece.index, piece.tokens, piece.done is not None, sequence.num_cached_tokens or 0)


class Disconnected(ApiError):
    """The client has closed its connection."""


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of some work, which is cancelled if the client disconnects."""
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
