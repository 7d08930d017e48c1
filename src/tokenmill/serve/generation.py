"""The routes that generate. A request is prepared in a thread, handed to the driver, and written as its pieces come."""

import asyncio
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
from tokenmill.serve.answer_schema import ChatAnswer, CompletionAnswer
from tokenmill.serve.answers import ChatFormat, CompletionFormat, Format
from tokenmill.serve.document import answers
from tokenmill.serve.errors import CLIENT_CLOSED, ApiError, event_of
from tokenmill.serve.prepare import Prepared, prepare_chat, prepare_completion
from tokenmill.serve.schema import ChatBody, CompletionBody, SamplingBody
from tokenmill.serve.service import JsonRoute, Service, tenant_of

KEEP_ALIVE = b": keep-alive\n\n"  # for a stream on which nothing has come for a while
MAX_TEXTS = 1024  # of one request
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
        name, fingerprint = self.service.options.name, self.service.fingerprint
        return prepared, self.kind(self.body, prepared, name, fingerprint, engine.tokenizer)


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
            events = _events(service.driver.pieces(prepared.request, form.id), form)
            with suppress(_Disconnected):
                await _unless_disconnected(request, self._send(events, send))

    async def _send(self, events: AsyncGenerator[bytes, None], send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(events):
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _events(steps: AsyncGenerator[list[Piece], None], form: Format) -> AsyncGenerator[bytes, None]:
    """The bytes that are written for each step, and a comment whenever nothing has come for a while."""
    try:
        if opening := b"".join(map(_event, form.opening())):
            yield opening
        async with aclosing(steps):
            async for pieces in steps:
                chunks = b"".join(_event(chunk) for piece in pieces for chunk in form.chunks(piece))
                if chunks or not pieces:
                    yield chunks or KEEP_ALIVE
        yield b"".join([*map(_event, form.closing()), b"data: [DONE]\n\n"])
    except Exception as error:  # noqa: BLE001  (the client hears of it)
        yield event_of(error)


def _event(value: Any) -> bytes:
    return b"data: " + pydantic_core.to_json(value) + b"\n\n"
