"""A line of the table of routes, serve/routes.py, from which application, document, errors and gate read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from typing import Any

from pydantic import BaseModel
from starlette.routing import compile_path

from tokenmill.serve.http.errors import PLAIN, Refusals
from tokenmill.serve.http.streams import EVENTS
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prompt import Model
from tokenmill.serve.request.writer import Writer


@dataclass(frozen=True)
class Protocol:
    """prefix: of its paths. refusals: the form of its errors. stream: the kind of its streams. needs_type: a body must
    say that it is JSON, whoever sends it. absent: what is said of a path below the prefix that has no route.
    """

    prefix: str = "/"
    refusals: Refusals = PLAIN
    stream: str = EVENTS
    needs_type: bool = True
    absent: str = ""


OPENAI = Protocol()


@dataclass(frozen=True)
class Route:
    """do: gets a Call, and returns a response or its JSON; None for a route that generates, which has a parser and a
    writer. refuses: the statuses of its refusals, beside those that any route may have. body, query, form: what it
    reads. told: what it does; the docstring of `do` where that says it. is_open: it wants no key. in_batches: lines of
    batches may ask for it.
    """

    method: str
    path: str
    do: Callable[[Any], Awaitable[Any]] | None = None
    refuses: tuple[int, ...] = ()
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    form: type[BaseModel] | None = None
    protocol: Protocol = OPENAI
    parse: Callable[[Any, Model], Ask | dict[str, Any]] | None = None
    writer: type[Writer] | None = None
    told: str = ""
    is_open: bool = False
    is_hidden: bool = False
    in_batches: bool = False

    def is_at(self, path: str) -> bool:
        """Return whether a path is this route's."""
        return self._pattern.match(path) is not None

    @property
    def description(self) -> str:
        """What it does, for the document."""
        return self.told or getdoc(self.do) or ""

    @cached_property
    def _pattern(self) -> Any:
        return compile_path(self.path)[0]
