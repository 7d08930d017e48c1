"""The tables of the pages "Coming from": from a list of other programs' names to what tokenmill does with each."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

from pydantic import AliasChoices

from tests.book.markdown import code, table
from tests.book.options import verbs
from tests.book.routes import document, operations
from tokenmill.cli.elsewhere.named import Named
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.cli.parser.verbs import GROUPS
from tokenmill.registry import VERBS
from tokenmill.serve.openai.parse import ChatBody, CompletionBody
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

OF_TEXT = ("generate", "chat", "serve", "batch")
"""The verbs whose options are compared with those of other programs' commands."""


def way_of(row: Named) -> str:
    """How it is written here: of several ways the first that this version has."""
    return next(each for each in row.ways if is_there(each))


def verb_of(line: str) -> str:
    """The verb of a command line of ours; empty for anything else."""
    found = re.match(r"tokenmill ((?:(?:bench|eval|cache) )?[a-z][a-z-]*)", line)
    return found[1] if found else ""


def is_there(way: str) -> bool:
    """Whether this version has the verb, or the route, that a way begins with."""
    if verb := verb_of(way):
        return verb in (*VERBS, *GROUPS) and set(re.findall(r"--[a-z-]+", way)) <= {*ALIASES, *names_of(verb)}
    found = re.match(r"(GET|POST) (/[^ ]*)", way)
    return found is None or (found[1], found[2].replace("NAME", "{name}")) in routes()


@cache
def names_of(verb: str) -> frozenset[str]:
    """The options of a verb; of a group those of its first verb, which may be left out."""
    return frozenset(name for each in verbs() if each.path in (verb, f"{verb} run") for name in each.known)


@cache
def routes() -> frozenset[tuple[str, str]]:
    """Method and path of every route."""
    return frozenset((method, path) for method, path, _ in operations(document()))


@cache
def options() -> Mapping[str, str]:
    """Every name under which a verb takes an option → its own name."""
    own = {}
    for verb in verbs():
        for param in verb.options if verb.path in OF_TEXT else ():
            own |= dict.fromkeys(param.names, param.names[0]) | {name: name for name in param.off}
    taken = {alias: own[name] for alias, name in ALIASES.items() if name in own and alias not in own}
    return own | taken | {"-m": "MODEL", "--model": "MODEL"}


@cache
def fields() -> Mapping[str, str]:
    """Every name under which a body takes a field → its own name."""
    found = {}
    for body in (CompletionBody, ChatBody):
        for name, field in body.model_fields.items():
            choices = field.validation_alias
            names = map(str, choices.choices) if isinstance(choices, AliasChoices) else [name]
            found |= dict.fromkeys(names, name)
    return found


def compared(rows: Iterable[Named], here: Callable[[Named], str]) -> str:
    """A sentence of the names that are the same, and a table of the others."""
    lines = [(code(*row.theirs.split(", ")), here(row), row.note) for row in rows]
    same = [theirs for theirs, ours, note in lines if ours == SAME and not note]
    others = [line for line in lines if line[1] != SAME or line[2]]
    return f"The same: {', '.join(same)}.\n\n" * bool(same) + table(("there", "here", ""), others)


def written(row: Named, nothing: str = "not there") -> str:
    """How something is written here."""
    way = way_of(row)
    if way in ("", "-"):
        return "not needed" if way else nothing
    return way if way.startswith("`") or " with " in way else code(way)


def option_here(row: Named) -> str:
    """An option of theirs here."""
    taken = {name: options()[name] for name in row.names if name in options()}
    meaning = {each for each in taken.values() if not each.startswith("--no-")}
    ours = way_of(row)
    if ours and meaning and ours not in meaning:
        return f"**another meaning**: {code(*taken)} is {code(*meaning)} here; write {code(ours)}"
    return _renamed(row, list(taken), meaning) if taken else written(row)


def _renamed(row: Named, taken: list[str], own: set[str]) -> str:
    is_all = len(taken) == len(row.names)
    if own <= set(row.names):
        return SAME if is_all else f"{code(*taken)} is taken"
    return f"{'taken' if is_all else code(*taken) + ' is taken'}; here it is {code(*sorted(own))}"


def field_here(row: Named) -> str:
    """A field of theirs here."""
    if taken := [name for name in row.names if name in fields()]:
        return _renamed(row, taken, {fields()[taken[0]]})
    is_refused = set(row.names) <= {*CompletionBody.UNSERVED, *ChatBody.UNSERVED}
    return written(row, "refused by name" if is_refused else "ignored, and named in `warnings`")


def argument_here(row: Named) -> str:
    """A keyword of theirs here."""
    known = {**settings_of(SamplingParams), **settings_of(EngineConfig)}
    return SAME if not way_of(row) and row.theirs in known else written(row)


def way_table(rows: Iterable[Named]) -> str:
    """Their commands, routes, variables or calls, and how each is written here."""
    return table(("there", "here", ""), ((code(row.theirs), written(row), row.note) for row in rows))


SAME = "the same"
TABLES = {
    "commands": way_table,
    "chat": way_table,
    "calls": way_table,
    "routes": way_table,
    "variables": way_table,
    "options": partial(compared, here=option_here),
    "fields": partial(compared, here=field_here),
    "parameters": partial(compared, here=field_here),
    "arguments": partial(compared, here=argument_here),
}
"""Kind of a list → its table."""


def parts(lists: Mapping[str, Any]) -> dict[str, str]:
    """The tables of a page by the names of its lists."""
    return {name: TABLES[name](rows) for name, rows in lists.items()}


def rows_in(lists: Mapping[str, Any]) -> Iterable[tuple[str, Named]]:
    """Every row of the lists of a program, with the name of its list."""
    return ((name, row) for name, rows in lists.items() for row in rows)
