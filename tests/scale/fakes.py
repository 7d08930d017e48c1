"""Replicas in this process, which can be killed, stopped and started in the midst of their answers."""

import asyncio
import json
import threading
from contextlib import contextmanager
from itertools import count

from tests.serve.conftest import SETTINGS
from tokenmill import load
from tokenmill.scale.fleet import Fleet, Part, ReplicaLost
from tokenmill.scale.gate import GateServer
from tokenmill.scale.mill import Mill
from tokenmill.serve.http.address import Address, listen
from tokenmill.serve.start.options import Options

LOST = object()


class FakeFleet(Fleet):
    """One engine for each replica. on_part: called with the Call, the replica and each message before that is
    handed on; it may call `kill` or change `leaving`, and return True to have the message lost.
    """

    def __init__(self, path, number, settings=None, **options):
        self.made = count()
        self._path, self._settings = path, {**SETTINGS, **(settings or {})}
        self._options, self.mills, self._open = Options("words", **options), {}, {}
        self.on_part = lambda call, replica, part: False
        self.calls, self.leaving = [], set()  # leaving: they take no more requests, and go on with those that they have
        for _ in range(number):
            self.add()

    def add(self):
        name = f"r{next(self.made)}"
        self.mills[name], self._open[name] = Mill(load(self._path, **self._settings), self._options), set()
        return name

    def kill(self, name):
        """The answers of a replica break off at once."""
        mill = self.mills.pop(name)
        for lost in self._open.pop(name):
            lost.set()
        mill.close()

    @property
    def replicas(self):
        return frozenset(self.mills) - self.leaving

    def choose(self, call):
        return sorted((self.replicas - call.avoid) or self.replicas, key=lambda name: hash((call.key, name)))

    async def answer(self, call):
        while not (names := self.choose(call)):
            await asyncio.sleep(0.01)
        name = names[0]
        self.calls.append((name, call))
        lost, parts = asyncio.Event(), self.mills[name].answer(call.scope, call.body, call.written)
        self._open[name].add(lost)
        dies = asyncio.ensure_future(lost.wait())
        try:
            yield Part(name, [])
            while True:
                nexts = asyncio.ensure_future(anext(parts, None))
                await asyncio.wait({nexts, dies}, return_when=asyncio.FIRST_COMPLETED)
                if lost.is_set():
                    nexts.cancel()
                    await asyncio.wait([nexts])
                    raise ReplicaLost(f"{name} was killed")
                if (messages := nexts.result()) is None:
                    return
                kept = []
                for message in messages:  # tests can cut between any two
                    if self.on_part(call, name, message):
                        yield Part(name, kept)
                        raise ReplicaLost(f"{name} was killed")
                    kept.append(message)
                    if name in self.leaving:  # the gate sees so here, though all of the answer may have come at once
                        yield Part(name, kept)
                        kept = []
                yield Part(name, kept)
        finally:
            dies.cancel()
            await parts.aclose()

    async def ask_all(self, scope):
        found = {}
        for name, mill in self.mills.items():
            messages = [each async for part in mill.answer(scope, b"") for each in part]
            found[name] = b"".join(message.get("body", b"") for message in messages)
        return found

    def close(self):
        for mill in self.mills.values():
            mill.close()


@contextmanager
def at_socket(fleet, **options):
    """The gate before a fleet, served at a socket, and its address. The fleet is closed in the end."""
    taken = listen(Address(port=0))
    server = GateServer(fleet, taken, Options("words", **options))
    thread = threading.Thread(target=server.serve_to_end, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{taken.getsockname()[1]}"
    finally:
        server.drain(0.0)
        thread.join(60)
        fleet.close()


async def ask(app, path, body=None, headers=(), method=None):
    """Status, headers and body that an ASGI application gives."""
    data, sent = b"" if body is None else json.dumps(body).encode(), []
    incoming = [{"type": "http.request", "body": data}]

    async def receive():
        if incoming:
            return incoming.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message):
        assert set(message) <= {"type", "status", "headers", "body", "more_body"}
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method or ("GET" if body is None else "POST"),
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost"), *headers],
        "state": {},
    }
    await app(scope, receive, send)
    assert not sent[-1].get("more_body"), "the answer does not end"
    assert [message["type"] for message in sent].count("http.response.start") == 1
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent)


def cut_before_messages(fleet, run, most=None):
    """Run a stream undisturbed, then again while the replica that writes it is lost before a message: each in turn, or
    about `most`. Yields the message's number, how many there are, and what was said undisturbed and now.
    """
    fleet.on_part = lambda *_: False
    run()  # so that the rows of the prompt are cached, as in all that follow
    fleet.calls.clear()
    wanted = run()
    (first, _), seen = fleet.calls[0], []
    fleet.on_part = lambda call, replica, part: seen.append(replica)
    run()
    for cut in range(0, len(seen), 1 if most is None else 1 + len(seen) // most):
        left = [cut]

        def lose(call, replica, part, left=left):
            left[0] -= replica == first
            return left[0] < 0 and replica == first

        fleet.on_part = lose
        fleet.calls.clear()
        yield cut, len(seen), wanted, run()


def events_of(data):
    """The events of a stream; comments are left out."""
    lines = [line for line in data.decode().split("\n\n") if line and not line.startswith(":")]
    return [line if line == "data: [DONE]" else json.loads(line.removeprefix("data: ")) for line in lines]
