"""A body of /v1/responses as the one request that the server knows, with the form of its answer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pydantic_core

from tokenmill.engine.core import Core
from tokenmill.serve.request.fields import ChatBody
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.writer import Format
from tokenmill.serve.responses.body import ResponsesBody
from tokenmill.serve.responses.parse import translate
from tokenmill.serve.responses.writer import ResponsesFormat

ECHOED: tuple[str, ...] = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
)
ECHOED += ("tool_choice", "top_p", "truncation")


def as_chat(
    body: ResponsesBody, is_strict: bool
) -> tuple[ChatBody, Callable[[Core, Any, bytes], Prepared], Callable[..., Format]]:
    """The one request, what prepares it, and the form of its answer. is_strict: unknown fields are refused."""
    body.check()
    made, names = translate(body)
    if is_strict:
        made.check_strict()
    return made.body(), made.prepare, partial(ResponsesFormat, _echoed(body), names)


def _echoed(body: ResponsesBody) -> dict[str, Any]:
    """The fields of a request that its answer repeats. Nothing is stored, whatever was asked.

    A number such as 1e999, which to a float is infinite, is null in it.
    """
    given = {**{name: getattr(body, name) for name in ECHOED}, "tools": body.tools or []}
    written = pydantic_core.from_json(pydantic_core.to_json(given, inf_nan_mode="null"))
    return {**written, "previous_response_id": None, "store": False}
