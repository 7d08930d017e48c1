"""The HTTP of a check: requests within a bound, waits for a server that is full, and the words for what goes wrong."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from tokenmill.bench.address import headers_of
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.prove.answer import Answer, Events, ProofRequest, TextsReader, Unreadable, message_in
from tokenmill.prove.settings import Settings

FULL = (429, 503)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class Spent(Exception):
    """The error of a check that has sent as many requests as are allowed."""


class Lost(Exception):
    """A request that was to be answered has failed; the message says how."""


class Refused(Lost):
    """The server refuses this request: its status and its own words."""

    def __init__(self, status: int, message: str, is_json: bool) -> None:
        super().__init__(f"HTTP {status}: {message}" if message else f"HTTP {status}")
        self.status, self.message, self.is_json = status, message, is_json


class AlwaysFull(TokenmillError):
    """The server takes no request, for as long as one was willing to wait."""


@dataclass
class Client:
    """Sends requests to one server. num_sent counts all of them, also requests that were answered with 429."""

    settings: Settings
    model: str | None = None
    num_sent: int = 0
    num_waits: int = 0

    def __post_init__(self) -> None:
        limits = httpx2.Limits(max_keepalive_connections=0)
        verify = _tls_context(self.settings)
        self._http = httpx2.AsyncClient(verify=verify, trust_env=False, timeout=None, limits=limits)

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    async def get(self, path: str, limit_s: float) -> tuple[int, Any]:
        """Return the status and the JSON of a GET; None for what is no JSON. httpx2's errors pass."""
        async with asyncio.timeout(limit_s):
            answer = await self._http.get(self.settings.at(path), headers=headers_of(self.settings.key))
        return answer.status_code, _json_of(answer.content)

    async def send(self, ask: ProofRequest, stream: bool = False) -> tuple[Answer, TextsReader]:
        """Send a request and return the texts of the answer. Lost without one, Refused where the server says why."""
        try:
            async with self._opened(ask, stream) as answer:
                if not stream:
                    return self._whole(answer, await answer.aread())
                events = Events()
                async for block in answer.aiter_bytes():
                    events.feed(block)
                return events.texts(), events.reader
        except Unreadable as error:
            raise Lost(str(error)) from None

    async def leave(self, ask: ProofRequest, num_events: int) -> None:
        """Begin a stream and close the connection after this many events."""
        events = Events()
        with contextlib.suppress(Unreadable):
            async with self._opened(ask, stream=True) as answer:
                async for block in answer.aiter_bytes():
                    events.feed(block)
                    if events.num_events >= num_events or events.done:
                        return

    def _whole(self, answer: httpx2.Response, content: bytes) -> tuple[Answer, TextsReader]:
        if (document := _json_of(content)) is None:
            raise Lost(f"an answer that is no JSON ({_kind(answer)})")
        reader = TextsReader()
        reader.add(document)
        return reader.texts, reader

    @contextlib.asynccontextmanager
    async def _opened(self, ask: ProofRequest, stream: bool) -> AsyncIterator[httpx2.Response]:
        """Open an answer with status 200, its body to be read inside; errors of the connection are Lost."""
        waited_s, wait_s = 0.0, _FIRST_WAIT_S
        limit_s = self.settings.request_limit_s
        try:
            while True:
                async with asyncio.timeout(limit_s), contextlib.aclosing(await self._post(ask, stream)) as answer:
                    if answer.status_code not in FULL:
                        await _check_status(answer)
                        yield answer
                        return
                    message = message_in(_json_of(await answer.aread()) or "")
                    status, asked_s = answer.status_code, _retry_after_s(answer)
                if waited_s >= self.settings.patience_s:
                    raise always_full(self.settings, status, waited_s, message)
                pause_s = min(wait_s if asked_s is None else max(asked_s, 0.05), _LONGEST_WAIT_S)
                pause_s = min(pause_s, max(self.settings.patience_s - waited_s, 0.05))
                self.num_waits += 1
                await asyncio.sleep(pause_s)
                waited_s, wait_s = waited_s + pause_s, 2 * wait_s
        except TimeoutError:
            raise Lost(f"no answer within {limit_s:g} s") from None
        except httpx2.ConnectError as error:
            raise Lost(f"no connection: {reason_of(error)}") from None
        except httpx2.HTTPError as error:
            raise Lost(f"connection dropped: {reason_of(error)}") from None

    async def _post(self, ask: ProofRequest, stream: bool) -> httpx2.Response:
        if self.num_sent >= self.settings.requests:
            raise Spent
        self.num_sent += 1
        # Encoded here, so that any text, a lone surrogate too, travels as ASCII.
        content = json.dumps(ask.body(self.model, stream)).encode()
        address, headers = self.settings.at(ask.route), headers_of(self.settings.key)
        request = self._http.build_request("POST", address, content=content, headers=headers)
        return await self._http.send(request, stream=True)


async def _check_status(answer: httpx2.Response) -> None:
    if answer.status_code != 200:
        document = _json_of(await answer.aread())
        message = _kind(answer) if document is None else message_in(document)
        raise Refused(answer.status_code, message, document is not None)


def _tls_context(settings: Settings) -> ssl.SSLContext | bool:
    if settings.url.startswith("http:") and settings.ca_file is None:
        return False  # one takes longer to make than many a request
    if settings.ca_file is None:
        return httpx2.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=str(settings.ca_file))
    except OSError as error:  # an SSLError is one
        allowed = f"a file of certificates in PEM ({error.strerror or error})"
        raise ConfigError("--ca-file", str(settings.ca_file), allowed) from None


def _json_of(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _kind(answer: httpx2.Response) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip() or "no content type"


def _retry_after_s(answer: httpx2.Response) -> float | None:
    """Return the wait that Retry-After asks for, in seconds; it may be a number or a date."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None


def always_full(settings: Settings, status: int, waited_s: float, message: str) -> AlwaysFull:
    """Make the error for a server that has answered 429 or 503 for this long."""
    said = f" ({message})" if message else ""
    return AlwaysFull(
        f"{settings.url} answered {status} all the time, for {waited_s:.0f} s{said}: wait until it is less busy, "
        "lower --concurrency, or let its queue be longer"
    )


def reason_of(error: Exception) -> str:
    """Return the words of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
