"""One request through the gate. It goes to a replica, and to another one if that fails: a client sees one answer.

A stream goes on where it broke off, since its text is a function of the prompt, the settings, the seed and the tokens
so far; so does a stream whose replica is to end. Any other answer is asked for again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

from pydantic_core import from_json
from starlette.types import Message, Send

from tokenmill.scale.fleet import AllBusy, Call, Fleet, Part, ReplicaLost
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.streams import KEEP_ALIVE, PING
from tokenmill.serve.loop.resumption import EXTENSION, Update
from tokenmill.serve.protocols import refusals_at

MAX_LOST = 5  # replicas that may end under a request before its first token: the request may be what ends them
PAUSE_S = 0.1  # between two attempts where no other replica is known
TICK_S = 0.5  # between two looks at what an answer waits for
SILENCE_S = 10.0  # after which a stream gets a comment
HAND_OVER_S = 10.0  # for a replica to take a stream from one that is to end
TRY_ANOTHER = (429, 503)

Parts = AsyncGenerator[Part, None]


class Declined(Exception):
    """A replica has answered that it takes nothing now. answer: the messages that say so."""

    def __init__(self, answer: list[Message]) -> None:
        self.answer, self.status = answer, answer[0]["status"]


class Relay:
    """One request on its way. patience_s: how long it waits when there is no replica that could go on. state: of the
    scope of the request that the client has sent.
    """

    def __init__(self, fleet: Fleet, call: Call, send: Send, patience_s: float, state: dict[str, Any]) -> None:
        self._fleet, self._call, self._send, self._patience_s, self._state = fleet, call, send, patience_s, state
        self._written, self._refusals = call.written, refusals_at(call.scope["path"])
        self._avoid: set[str] = set()
        self._kept: set[str] = set()  # replicas that are to end, whose streams no other one takes
        self._begun_s = self._came_s = asyncio.get_running_loop().time()  # and when something came last
        self._is_begun = False  # whether the client has seen the beginning of a response
        self._is_over = False  # whether the client has seen all of it
        self._whole: list[Message] = []  # of an answer that is no stream: a client sees none of it before all is there
        self._replica = ""  # that answers
        self._num_lost = 0  # replicas, since something came of the text

    async def run(self) -> None:
        """Send the whole answer, or an error."""
        while not self._is_over:
            parts = self._fleet.answer(self._next_call())
            try:
                await self._pass_on(parts)
            except Declined as declined:
                waits = declined.status == 503 or (declined.status == 429 and self._is_begun)
                if self._is_expired or (self._has_tried_all and not waits):
                    await self._decline(declined.answer)
            except AllBusy as error:
                if self._is_expired or not self._is_begun:
                    message = str(error)
                    await self._fail(ApiError(429, message, code="queue_full", retry_after_s=error.retry_after_s))
                await asyncio.sleep(PAUSE_S)
            except ReplicaLost as error:
                if self._num_lost >= MAX_LOST or self._is_expired:
                    await self._fail(ApiError(503, f"no replica could answer: {error}", code="replica_lost"))
            if not self._is_over:
                await self._wait_for_other()

    # ---- attempts

    def _next_call(self, *avoid: str) -> Call:
        written = deepcopy(self._written)
        if written is not None:
            written.elapsed_s = self._now_s - self._begun_s
        return replace(self._call, avoid=frozenset({*self._avoid, *avoid}), written=written)

    async def _pass_on(self, parts: Parts) -> None:
        """Send what comes of an attempt, to its end. Declined, AllBusy or ReplicaLost where it breaks off."""
        replica, answer = "", list[Message]()  # answer: the messages of one that is not passed on
        self._whole = []
        try:
            while not self._is_over:
                if (part := await self._next_part(parts, replica)) is None:
                    raise ReplicaLost("an answer broke off")
                replica = self._replica = part.replica
                for message in part.messages:
                    if not self._is_over:  # what comes after the last event ends a response that is ended already
                        await self._take(message, answer)
                if self._is_to_leave(replica) and (found := await self._other(replica)) is not None:
                    await parts.aclose()
                    parts, replica = found
        except (ReplicaLost, Declined) as error:
            self._avoid.add(replica)
            self._num_lost += isinstance(error, ReplicaLost) and replica != ""
            raise
        finally:
            await parts.aclose()

    async def _next_part(self, parts: Parts, replica: str) -> Part | None:
        """Return the next part, None at the end. While it waits the client gets comments."""
        waits = asyncio.ensure_future(anext(parts, None))
        try:
            while not (await asyncio.wait({waits}, timeout=TICK_S))[0]:
                if not replica and not self._fleet.replicas and self._is_expired:
                    raise ReplicaLost("there is none")
                if PING in self._state and self._now_s - self._came_s > SILENCE_S:
                    await self._send({"type": "http.response.body", "body": self._state[PING], "more_body": True})
            if waits.cancelled():  # by its own end, since this task goes on
                raise ReplicaLost("its answer was cancelled")
            return waits.result()
        finally:
            if not waits.done():
                waits.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await waits

    def _is_to_leave(self, replica: str) -> bool:
        """Tell whether a stream should go on elsewhere, because its replica takes no requests any more."""
        is_stream = self._written is not None and self._is_begun and not self._is_over
        return is_stream and replica not in self._fleet.replicas | self._kept and bool(self._fleet.replicas)

    async def _other(self, replica: str) -> tuple[Parts, str] | None:
        """Begin an attempt with another replica; None if it does not go on with the stream."""
        parts = self._fleet.answer(self._next_call(replica))
        try:
            async with asyncio.timeout(HAND_OVER_S):
                async for part in parts:
                    if part.messages and part.messages[0].get("status") == 200:
                        for message in part.messages:
                            await self._take(message, [])
                        return parts, part.replica
                    if part.messages:
                        break
        except (ReplicaLost, AllBusy, TimeoutError):
            pass
        self._kept.add(replica)
        await parts.aclose()
        return None

    async def _wait_for_other(self) -> None:
        if not self._fleet.replicas - self._avoid:
            await asyncio.sleep(PAUSE_S)
            self._avoid.clear()

    # ---- messages

    async def _take(self, message: Message, answer: list[Message]) -> None:
        """Pass on a message; `answer` collects the messages of an answer that is not passed on."""
        update: Update | None = message.pop(EXTENSION, None)
        if answer or self._is_declined(message):
            answer.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                raise Declined(answer)
            return
        if update is not None and update.has_failed:
            raise ReplicaLost("its engine has failed")
        if self._written is not None and update is not None:
            self._written.note(update)
            self._num_lost = 0 if update.pieces else self._num_lost
        self._came_s = self._now_s
        is_start = message["type"] == "http.response.start"
        if is_start:
            message["headers"] = [*message["headers"], (b"x-replica", self._replica.encode())]
            if self._written is not None and message["status"] == 200:
                self._state[PING] = self._written.begun.get("keep_alive", KEEP_ALIVE)
        if self._written is None:
            await self._take_whole(message)
            return
        if not (is_start and self._is_begun):
            await self._send(message)
        self._is_begun |= is_start
        if update is not None and update.is_over:
            await self._send({"type": "http.response.body", "body": b""})
            self._is_over = True
        elif not is_start and not message.get("more_body"):
            self._is_over = True

    async def _take_whole(self, message: Message) -> None:
        """Pass on an answer that is no stream, once it is complete: another replica might answer otherwise."""
        self._whole.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._is_begun = self._is_over = True
            for each in self._whole:
                await self._send(each)

    def _is_declined(self, message: Message) -> bool:
        status = message.get("status", 200)
        return status in TRY_ANOTHER or (self._is_begun and status != 200)

    async def _decline(self, answer: list[Message]) -> None:
        body = b"".join(message.get("body", b"") for message in answer)
        if self._is_begun:
            await self._end(self._refusals.event(from_json(body), self._begun))
            return
        for message in answer:
            await self._send(message)
        self._is_over = True

    async def _fail(self, error: ApiError) -> None:
        """Send an error: as a response, if none was begun; else as the last event of a stream."""
        if not self._is_begun:
            raise error
        await self._end(self._refusals.event_of(error, self._begun))

    async def _end(self, event: bytes) -> None:
        if self._written is not None:
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})
        self._is_over = True

    # ---- what is known

    @property
    def _begun(self) -> dict[str, str]:
        """The fields of an answer that the client knows, if it was begun."""
        begun = {} if self._written is None else self._written.begun
        return {"id": begun["id"]} if "id" in begun else {}

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def _is_expired(self) -> bool:
        return self._now_s - self._came_s > self._patience_s

    @property
    def _has_tried_all(self) -> bool:
        return self._fleet.replicas <= self._avoid
