"""One peer program in a process of its own: one request and one answer per line, each with a time limit.

Whatever the program does (hang, crash, be killed, print something else), the caller gets an answer or a PeerFailed
whose one line says why. `programs/wire.py` has the other end of the protocol.
"""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

LONGEST_ANSWER = 64 * 2**20
GOODBYE_S = 3.0


class PeerFailed(Exception):
    """The peer is of no further use; the text says why, in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split())[:300])


class PeerRefused(PeerFailed):
    """The peer refused this request and listens to the next."""


class PeerProcess:
    """A running peer program. Call stop(), always: it ends everything that the program has started."""

    def __init__(self, command: Sequence[str], threads: int) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        self._received = b""
        try:
            self._process = subprocess.Popen(  # noqa: S603  (the user named the interpreter, the script is ours)
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)},
                start_new_session=True,  # a group to end together; and Ctrl-C is ours to handle
            )
        except OSError as error:
            self._log.close()
            raise PeerFailed(f"{command[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Ask one request, and return the answer without its "ok"; PeerFailed when there is none within limit_s."""
        if self._received:
            raise PeerFailed(f"wrote more than one answer: {_excerpt(self._received)}")
        pending, deadline_s = json.dumps(request).encode() + b"\n", time.monotonic() + limit_s
        with selectors.DefaultSelector() as pipes:
            pipes.register(self._stdin, selectors.EVENT_WRITE)
            pipes.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                ready = {key.fileobj for key, _ in pipes.select(max(0.0, deadline_s - time.monotonic()))}
                if not ready:
                    raise PeerFailed(f"no answer to {request['op']} within {limit_s:g} s")
                if self._stdin in ready:
                    pending = self._send(pending)
                    if not pending:
                        pipes.unregister(self._stdin)
                if self._stdout in ready:
                    self._receive()
        line, _, self._received = self._received.partition(b"\n")
        return _parse(line)

    def stop(self) -> None:
        """Close its stdin, which ends it; kill the processes that are left. May be called twice."""
        self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()
        self._log.close()

    def kill(self) -> None:
        """Stop it without waiting for a goodbye."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def _send(self, pending: bytes) -> bytes:
        """Send some bytes, and return the bytes that could not be sent yet."""
        try:
            return pending[os.write(self._stdin.fileno(), pending) :]
        except BrokenPipeError:
            return b""  # it has ended, which the other pipe will say

    def _receive(self) -> None:
        chunk = os.read(self._stdout.fileno(), 1 << 16)
        if not chunk:
            raise PeerFailed(self._last_words())
        self._received += chunk
        if len(self._received) > LONGEST_ANSWER:
            raise PeerFailed(f"does not stop talking: {_excerpt(self._received)}")

    def _last_words(self) -> str:
        """Say in one line how it ended, with the last line that it left on stderr."""
        try:
            code = self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            return "closed its stdout"
        how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"ended with {how}" + (f": {said[-1]}" if said else "")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
        ok = answer.pop("ok")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise PeerFailed(f"answered {_excerpt(line)}, which is no answer") from None
    if not ok:
        raise PeerRefused(str(answer.get("error", "failed and gave no reason")))
    assert isinstance(answer, dict), "pop with one argument of a list would have raised"
    return answer


def _excerpt(text: bytes) -> str:
    return repr(text[:60].decode(errors="replace"))
