"""One connection of a client: timeouts, slow readers, clients that have closed their half."""

import asyncio
import socket
from math import inf
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tokenmill.serve.http.errors import PLAIN, ApiError
from tokenmill.serve.http.streams import PING

HEAD_S = 10.0  # for all headers of a request
STALL_S = 30.0  # for a reader that takes nothing
PROBE_S = 0.25  # between two looks whether a client that has closed its half is still there
AT_ONCE = ("GET", "HEAD")  # methods of routes that compute nothing for long
HALF_CLOSED = (
    "the connection was closed for sending before the answer had begun; over HTTP/1.0 and TLS nothing tells that from "
    "a client that has gone: keep it open until the answer has come, or send HTTP/1.1 without TLS"
)


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with timeouts.

    The headers of a request have HEAD_S, then the connection is closed. If a client takes nothing of what was written
    for it between two looks STALL_S apart, the connection is aborted: to close it would wait until all is taken. So it
    is if a response waits for its reader for STALL_S, because too much of what was written is not taken. What the
    client asked for is cancelled then.

    A client may close its half of the connection after a request and still wait for the response (`nc -N` does). To the
    server that looks like a client that has gone, until something is written: a client that has gone answers with a
    reset. So a status 100, which clients of HTTP/1.1 pass over, is written before the response, or a PING into a stream
    that has begun, and from then on the connection is asked whether it was reset. HTTP/1.0 has no status 100: there a
    stream that has begun goes on, and so does what is computed at once. Everything else is refused, and over TLS all,
    because asyncio closes a TLS connection whatever is answered here.
    """

    _timer: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _has_drained = False  # since the last look
    _probe: asyncio.TimerHandle | None = None
    _is_half_closed = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()
        self._look_for_reader(inf)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_is_here()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        for timer in (self._look, self._stall, self._probe):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """See asyncio.Protocol. True keeps the connection open, which TLS cannot."""
        cycle = self.cycle
        is_waiting = cycle is not None and not cycle.response_complete and not cycle.more_body
        knows_status_100 = self.conn.their_http_version == b"1.1"
        goes_on = is_waiting and (knows_status_100 or cycle.response_started or cycle.scope["method"] in AT_ONCE)
        self._is_half_closed = goes_on and self.scheme == "http"
        if self._is_half_closed:
            if cycle.response_started:
                self._write(h11.Data(data=cycle.scope["state"].get(PING, b"")))
            elif knows_status_100:
                self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._look_for_reset()
        elif is_waiting and not cycle.response_started:
            self._refuse(cycle)
        return self._is_half_closed

    def _refuse(self, cycle: RequestResponseCycle) -> None:
        """Answer in the place of the application, for which the client has gone."""
        cycle.disconnected = True
        cycle.message_event.set()
        told = PLAIN.respond(ApiError(400, HALF_CLOSED))
        headers = [*told.raw_headers, (b"connection", b"close")]
        self._write(h11.Response(status_code=told.status_code, headers=headers, reason=b"Bad Request"))
        self._write(h11.Data(data=bytes(told.body)))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Event) -> None:
        self.transport.write(self.conn.send(event) or b"")

    def on_response_complete(self) -> None:
        """See H11Protocol. A client that has closed its half sends no more of a request."""
        super().on_response_complete()
        if self.cycle.response_complete and self._is_half_closed:
            self.transport.close()
        elif self.cycle.response_complete and self.conn.trailing_data[0]:  # a head has begun to come
            self._wait_for_head()

    def _look_for_reset(self) -> None:
        """Look with one timer, though the end of a half is told again with each request that came in one piece."""
        if self._probe is not None:
            self._probe.cancel()
        if self.transport.is_closing():
            return
        connected: socket.socket | None = self.transport.get_extra_info("socket")
        if connected is not None and connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._probe = self.loop.call_later(PROBE_S, self._look_for_reset)

    def pause_writing(self) -> None:
        self._stall = self.loop.call_later(STALL_S, self._abort_what_waits)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._has_drained = True
        if self._stall is not None:
            self._stall.cancel()
        super().resume_writing()

    def _abort_what_waits(self) -> None:
        """Abort a response that waits; one that was written to its end may be taken slowly."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()

    def _look_for_reader(self, before: float) -> None:
        """Abort if nothing was taken since the last look. before: bytes left then; `inf` for none."""
        left = self.transport.get_write_buffer_size()
        if left and left >= before and not self._has_drained:
            self.transport.abort()
            return
        self._has_drained = False
        self._look = self.loop.call_later(STALL_S, self._look_for_reader, left or inf)

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _head_is_here(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
