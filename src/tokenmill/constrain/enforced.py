"""The schemas of a request's functions, as far as llguidance can enforce them: agents send keywords that it cannot.

They are read as any schema is (schema.py). For a strict function a keyword that is not implemented is refused by name.
Otherwise the keyword is dropped with a warning, and a schema that cannot be read at all is dropped whole, so that the
arguments may be any object. Annotations are told for either.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from llguidance import LLMatcher

from tokenmill.constrain.room import Budget, check_wanted
from tokenmill.constrain.schema import reading
from tokenmill.constrain.schema_parts import SchemaError
from tokenmill.errors import RequestError
from tokenmill.registry import TOOL_FORMATS, lookup
from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.grammar import calls_grammar

KEPT, KEPT_LISTS = 512, 32  # functions, and lists of them: the requests of an agent have the same ones again and again
MAX_TOLD = 300  # characters of llguidance's reason
BUDGET = Budget(seconds=5.0, most=2)
"""The time of all functions of a request together, the same as for compiling a constraint."""

Asked = tuple[str, bool | None, str, bool]
"""The schema of a function as JSON text, `strict`, its name, and whether its objects are open."""


class Checked(NamedTuple):
    """The outcome of reading a function's schema. reason: why it is not enforced, "" where it is. schema: what grammars
    are made of; None where nothing of it can be enforced. warnings: of parts of it without effect.
    """

    reason: str
    schema: dict[str, Any] | None
    warnings: tuple[str, ...] = ()


def enforced(
    functions: Sequence[Function], tool_format: str, *, is_open: bool = False
) -> tuple[tuple[Function, ...], list[str]]:
    """Return the functions with schemas that a grammar can be made of, and a warning for each that is not enforced
    whole, or has annotations that are not known.

    tool_format: the name of the format of calls. is_open: objects that name their properties may have others, but for
    strict functions. RequestError for a strict function with a schema that cannot be enforced, and where reading the
    schemas takes too long.
    """
    found, warnings = [], []
    asked = tuple(
        (json.dumps(each.parameters), each.strict, each.name, is_open and not each.strict) for each in functions
    )
    for function, checked in zip(functions, _all_checked(asked, tool_format), strict=True):
        reason, schema = checked.reason, checked.schema
        if function.strict and reason:
            raise RequestError(
                f"{function.name}: strict is not possible: {reason}: "
                "leave that out of its parameters, or leave out strict"
            )
        if reason:
            part = "its parameters are" if schema is None else "parts of its parameters are"
            warnings.append(f"{function.name}: {part} not enforced: {reason}")
        warnings += [f"{function.name}: {each}" for each in checked.warnings]
        found.append(replace(function, strict=False) if schema is None else replace(function, read=schema))
    return tuple(found), warnings


@lru_cache(KEPT_LISTS)
def _all_checked(asked: tuple[Asked, ...], tool_format: str) -> list[Checked]:
    """Check each function within the time that there is."""
    found: list[Checked] = []

    def check() -> list[Checked]:
        for each in asked:
            check_wanted()
            found.append(_checked(*each, tool_format))
        return found

    try:
        return BUDGET.within(check, "the parameters of tools") if asked else found
    except TimeoutError:
        _, _, name, _ = asked[min(len(found), len(asked) - 1)]
        raise RequestError(
            f"{name}: the schemas of {len(asked)} functions were not read in {BUDGET.seconds:g} s, and this one's not "
            "to its end: make it simpler, or give fewer functions"
        ) from None


@lru_cache(KEPT)
def _checked(parameters: str, strict: bool | None, name: str, is_open: bool, tool_format: str) -> Checked:
    if strict is False:  # nothing of it counts
        return Checked("", {})
    try:
        read = reading(json.loads(parameters), is_open=is_open, is_lenient=not strict)
        function = Function(name, "", json.loads(parameters), strict, read=read.schema)
        form = lookup(TOOL_FORMATS, tool_format, "tool_format")
        grammar = calls_grammar(form, [function], ToolChoice("required"), control={})
    except (SchemaError, ValueError) as error:  # the latter of a pattern
        return Checked(str(error)[:MAX_TOLD], None)
    except RecursionError:
        return Checked("it is nested too deeply", None)
    is_wrong, told = LLMatcher.validate_grammar_with_warnings(grammar)
    others = [] if is_wrong else form.body.unenforced(function)
    reasons = dict.fromkeys(filter(None, [*read.left_out, *map(_reason, told), ", ".join(others)]))
    return Checked("; ".join(reasons)[:MAX_TOLD], None if is_wrong else read.schema, tuple(read.warnings))


def _reason(told: str) -> str:
    """Return a reason in llguidance's words, without the grammar that it quotes."""
    return told.splitlines()[0].rpartition("failed to compile JSON schema: ")[2].strip() if told else ""
