"""The warm-up: what the first request would wait for is done before the server says that it is ready.

Weights that are mapped from a file come into memory with the first step; the application, the reader of bodies and the
chat template are built or compiled when they are first used.
"""

import json

from starlette.types import ASGIApp, Message

from tokenmill.engine.engine import Engine

BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()


def use_engine(engine: Engine) -> None:
    """Compute two tokens, which is a step that prefills and one that decodes. A block that is full would be kept."""
    count = min(2, min(engine.config.max_length, engine.core.scheduler.allocator.block_size) - 1)
    if count > 0:
        engine.generate([0], max_new_tokens=count, temperature=1.0, seed=0, ignore_eos=True)


async def use_routes(app: ASGIApp) -> None:
    """Have a conversation tokenized. A model that has no chat template refuses it, which does as well."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": "/tokenize",
        "raw_path": b"/tokenize",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY}

    async def send(_: Message) -> None:
        pass

    await app(scope, receive, send)
