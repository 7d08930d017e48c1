"""The routes that generate. A request is prepared in a thread, handed to the driver, and written as its pieces come."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pydantic_core
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion, Piece
from tokenmill.errors import DeadlinePassed
from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.answer_schema import ChatAnswer, CompletionAnswer
from tokenmill.serve.answers import ChatFormat, CompletionFormat, Format
from tokenmill.serve.document import answers
from tokenmill.serve.errors import CLIENT_CLOSED, ApiError, EngineDied, event_of
from tokenmill.serve.prepare import Prepared, prepare_chat, prepare_completion
from tokenmill.serve.resumption import EXTENSION, Resumption, Update, Written, resumption_of
from tokenmill.serve.schema import ChatBody, CompletionBody, SamplingBody
from tokenmill.serve.service import JsonRoute, Service, tenant_of

KEEP_ALIVE = b": keep-alive\n\n"  # for a stream on which nothing has come for a while
MAX_TEXTS = 1024  # of one request
MIN_TIMEOUT_S = 0.001  # for a stream that goes on elsewhere after its time
REFUSALS = (400, 404, 408, 429, 503, 504)
T = TypeVar("T")
Events = AsyncGenerator[tuple[bytes, Update | None], None]


def generation(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/completions", responses=answers(CompletionAnswer, *REFUSALS, streams=True))
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continue a prompt, or several."""
        return await _respond(_Work(service, request, body, prepare_completion, CompletionFormat))

    @routes.post("/v1/chat/completions", responses=answers(ChatAnswer, *REFUSALS, streams=True))
    async def chat(request: Request, body: ChatBody) -> Response:
        """Answer a conversation."""
        return await _respond(_Work(service, request, body, prepare_chat, ChatFormat))

    return routes


@dataclass
class _Work:
    """One request, from its body to the form of its answer."""

    service: Service
    request: Request
    body: SamplingBody
    prepare: Callable[[Core, Any, bytes], Prepared]
    kind: type[Format]

    @property
    def num_slots(self) -> int:
        """Texts that run or wait together; the others of the request wait behind them."""
        return min(self.body.num_sequences, self.service.admission.max_open_of_one)

    def check_number(self) -> None:
        """ApiError for more texts than a request may ask for; for one prompt no more than run and wait together."""
        count, max_together = self.body.num_sequences, self.service.admission.max_open_of_one
        for name in ("n", "best_of"):
            if (each := getattr(self.body, name, None) or 1) > max_together:
                raise ApiError(
                    400, f"{name} = {each} is more than the {max_together} that this server takes at once", name
                )
        if count > max(MAX_TEXTS, max_together):
            message = f"{count} texts are more than the {max(MAX_TEXTS, max_together)} that one request may ask for"
            raise ApiError(400, message, "prompt")

    async def begin(self) -> tuple[Prepared, Format]:
        """The prompts encoded and everything checked, their log-probabilities computed if they are wanted."""
        engine, written = self.service.engine, resumption_of(self.request.scope)
        if self.body.seed is None:
            self.body.seed = self.service.options.seed
        if written is not None:
            self._take_up(written)
        prepared = await self.service.in_thread(
            self.request, self.prepare, engine.core, self.body, tenant_of(self.request)
        )
        try:
            async with asyncio.timeout(self.body.timeout if prepared.prompt_logprobs else None):
                for sequence, _ in prepared.prompt_logprobs:
                    await self.service.driver.score(sequence)
        except TimeoutError:
            raise DeadlinePassed("the deadline has passed before the prompt was computed") from None
        name, fingerprint = self.service.options.name, self.service.fingerprint
        form = self.kind(self.body, prepared, name, fingerprint, engine.tokenizer)
        if written is not None and self.body.stream:
            await self.service.in_thread(self.request, self._resume, prepared, form, written)
        return prepared, form

    def _take_up(self, written: Resumption) -> None:
        """Have the seed and the time that the stream began with; a new one gets a seed that can be told."""
        other = written.begun.get("system_fingerprint", self.service.fingerprint)
        if other != self.service.fingerprint:
            message = f"a stream of {other} cannot go on here, where texts may be others: {self.service.fingerprint}"
            raise ApiError(409, message, code="other_fingerprint")
        if self.body.seed in (None, -1) or "seed" in written.begun:
            self.body.seed = written.begun.get("seed", secrets.randbelow(2**32))
        if self.body.timeout is not None:
            self.body.timeout = max(self.body.timeout - written.elapsed_s, MIN_TIMEOUT_S)

    def _resume(self, prepared: Prepared, form: Format, written: Resumption) -> None:
        sequences = prepared.request.sequences
        self.service.engine.core.inputs.resume(sequences, [written.tokens.get(i, []) for i in range(len(sequences))])
        for index, number in written.num_cached.items():
            sequences[index].num_cached_tokens = number
        form.resume(written)


async def _respond(work: _Work) -> Response:
    work.service.check_ready()
    work.service.check(work.body)
    work.check_number()
    if work.body.stream:
        return _EventStream(work)
    with work.service.admission.slots(work.num_slots, tenant_of(work.request)):
        return await _unless_disconnected(work.request, _answer(work))


async def _answer(work: _Work) -> Response:
    prepared, form = await work.begin()
    done: list[Completion | None] = [None] * len(prepared.request.sequences)
    async with aclosing(work.service.driver.pieces(prepared.request, form.id)) as steps:
        async for pieces in steps:
            for piece in pieces:
                done[piece.index] = piece.done
    completions = [each for each in done if each is not None]  # with log-probabilities they may be long
    return await work.service.in_thread(work.request, lambda: JSONResponse(form.answer(completions)))


class _Disconnected(ApiError):
    """The client has closed its connection."""


async def _unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled if the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Disconnected(CLIENT_CLOSED, "the client has gone")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventStream(Response):
    """Server-sent events. Places are taken when it is sent, and given back however that ends.

    One task writes all of it, without the layers of a StreamingResponse, since what an event costs is taken from the
    processors that compute the next tokens.
    """

    media_type = "text/event-stream"

    def __init__(self, work: _Work) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response. What is refused before the first byte has a status of its own."""
        service, request = self._work.service, self._work.request
        with service.admission.slots(self._work.num_slots, tenant_of(request)):
            prepared, form = await _unless_disconnected(request, self._work.begin())
            steps, written = service.driver.pieces(prepared.request, form.id), resumption_of(scope)
            events = _events(steps, form, prepared.request.sequences, written)
            begun = None if written is None else Update(begun={**form.begun, "seed": self._work.body.seed})
            with suppress(_Disconnected):
                await _unless_disconnected(request, self._send(events, begun, send))

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
    """The bytes that are written for each step, and a comment whenever nothing has come for a while.

    written: what was written of it before; then each comes with an Update. A piece for which nothing is written is told
    with the next one that the client sees.
    """
    unseen: list[Written] = []

    def update(**news: Any) -> Update | None:
        return None if written is None else Update(**news)

    try:
        if (written is None or not written.is_opened) and (opening := b"".join(map(_event, form.opening()))):
            yield opening, update(is_opened=True)
        async with aclosing(steps):
            async for new in steps:
                pieces = new if written is None else [piece for piece in new if piece.index not in written.ended]
                chunks = b"".join(_event(chunk) for piece in pieces for chunk in form.chunks(piece))
                if written is not None:
                    unseen += [_written(piece, sequences[piece.index]) for piece in pieces]
                if chunks:
                    told, unseen = tuple(unseen), []
                    yield chunks, update(pieces=told, is_opened=True)
                elif not new:
                    yield KEEP_ALIVE, update()
        yield b"".join([*map(_event, form.closing()), b"data: [DONE]\n\n"]), update(is_over=True)
    except Exception as error:  # noqa: BLE001  (the client hears of it)
        yield event_of(error), update(is_over=True, has_failed=isinstance(error, EngineDied))


def _written(piece: Piece, sequence: Sequence) -> Written:
    return Written(piece.index, piece.tokens, piece.done is not None, sequence.num_cached_tokens or 0)


def _event(value: Any) -> bytes:
    return b"data: " + pydantic_core.to_json(value) + b"\n\n"
