"""The routes that generate. A request is prepared in a thread, handed to the driver, and written as its pieces come."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion, Piece
from tokenmill.errors import DeadlinePassed
from tokenmill.serve.answer_schema import ChatAnswer, CompletionAnswer
from tokenmill.serve.answers import ChatFormat, CompletionFormat, Format
from tokenmill.serve.document import answers
from tokenmill.serve.errors import CLIENT_CLOSED, ApiError, body_of, described
from tokenmill.serve.prepare import Prepared, prepare_chat, prepare_completion
from tokenmill.serve.schema import ChatBody, CompletionBody, SamplingBody
from tokenmill.serve.service import JsonRoute, Service, tenant_of

__all__ = ["generation"]

KEEP_ALIVE_S = 10.0  # a stream on which nothing comes says so often that it is still there
REFUSALS = (400, 404, 408, 429, 503, 504)
T = TypeVar("T")


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

    async def begin(self) -> tuple[Prepared, Format]:
        """The prompts encoded and everything checked, their log-probabilities computed if they are wanted."""
        engine = self.service.engine
        if self.body.seed is None:
            self.body.seed = self.service.options.seed
        prepared = await self.service.in_thread(
            self.request, self.prepare, engine.core, self.body, tenant_of(self.request)
        )
        try:
            async with asyncio.timeout(self.body.timeout if prepared.prompt_logprobs else None):
                for sequence, _ in prepared.prompt_logprobs:
                    await self.service.driver.score(sequence)
        except TimeoutError:
            raise DeadlinePassed("the deadline has passed before the prompt was computed") from None
        return prepared, self.kind(self.body, prepared, self.service.options.name, engine.tokenizer)


async def _respond(work: _Work) -> Response:
    work.service.check_ready()
    work.service.check(work.body)
    count, most = work.body.num_sequences, work.service.driver.max_open_of_one
    if count > most:
        names = [name for name in ("n", "best_of") if (getattr(work.body, name, None) or 1) > most]
        message = f"{count} texts are more than the {most} that this server takes at once"
        raise ApiError(400, message, names[0] if names else "prompt")
    if work.body.stream:
        return _EventStream(work)
    with work.service.driver.places(count, tenant_of(work.request)):
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


async def _unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled if the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_CLOSED, "the client has gone")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """Server-sent events. Places are taken when it is sent, and given back however that ends."""

    def __init__(self, work: _Work) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(iter(()), headers=headers, media_type="text/event-stream")
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See StreamingResponse. What is refused before the first byte has a status of its own."""
        driver = self._work.service.driver
        with driver.places(self._work.body.num_sequences, tenant_of(self._work.request)):
            prepared, form = await _unless_disconnected(self._work.request, self._work.begin())
            news = driver.pieces(prepared.request, form.id)
            async with aclosing(news) as steps, aclosing(_events(steps, form)) as events:
                self.body_iterator = events
                await super().__call__(scope, receive, send)


async def _events(steps: AsyncIterator[list[Piece]], form: Format) -> AsyncGenerator[bytes, None]:
    try:
        for chunk in form.opening():
            yield _event(chunk)
        async with aclosing(_with_keep_alive(steps)) as news:
            async for pieces in news:
                chunks = [_event(chunk) for piece in pieces or () for chunk in form.chunks(piece)]
                if chunks or pieces is None:
                    yield b"".join(chunks) or b": keep-alive\n\n"
        for chunk in form.closing():
            yield _event(chunk)
        yield b"data: [DONE]\n\n"
    except Exception as error:  # noqa: BLE001  (after the first byte there is no status to tell it with)
        yield _event(body_of(described(error)))


async def _with_keep_alive(steps: AsyncIterator[list[Piece]]) -> AsyncGenerator[list[Piece] | None, None]:
    """The pieces of each step, and None whenever no pieces have come for KEEP_ALIVE_S."""
    waiting = asyncio.ensure_future(_next(steps))
    try:
        while True:
            await asyncio.wait({waiting}, timeout=KEEP_ALIVE_S)
            if not waiting.done():
                yield None
            elif (pieces := waiting.result()) is None:
                return
            else:
                waiting = asyncio.ensure_future(_next(steps))
                yield pieces
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


async def _next(steps: AsyncIterator[list[Piece]]) -> list[Piece] | None:
    return await anext(steps, None)


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
