"""The schemas of a request's functions, as far as llguidance can enforce them: agents send keywords that it cannot.

For a strict function such a keyword is refused by name. Otherwise the keyword is dropped with a warning, and a schema
that cannot be read at all is dropped whole, so that the arguments may be any object.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from llguidance import LLMatcher

from tokenmill.constrain.room import Budget, check_wanted
from tokenmill.errors import RequestError
from tokenmill.registry import TOOL_FORMATS, lookup
from tokenmill.text.tools.functions import Choice, Function
from tokenmill.text.tools.grammar import calls_grammar

KEPT, KEPT_LISTS = 512, 32  # functions, and lists of them: the requests of an agent have the same ones again and again
MAX_TOLD = 300  # characters of llguidance's reason
BUDGET = Budget(seconds=5.0, most=2)
"""For all functions of a request together, as for compiling a constraint."""

Asked = tuple[str, bool | None, str]
"""The schema of a function as JSON text, `strict`, and its name."""


def enforced(functions: Sequence[Function], tool_format: str) -> tuple[tuple[Function, ...], list[str]]:
    """The functions with schemas that a grammar can be made of, and a warning for each that is not enforced whole.

    tool_format: the name of the format of calls. RequestError for a strict function with a schema that cannot be, and
    where reading the schemas takes too long.
    """
    found, warnings = [], []
    asked = tuple((json.dumps(each.parameters), each.strict, each.name) for each in functions)
    for function, (reason, is_readable) in zip(functions, _all_checked(asked, tool_format), strict=True):
        if function.strict and reason:
            raise RequestError(
                f"{function.name}: strict is not possible: {reason}: "
                "leave that out of its parameters, or leave out strict"
            )
        if reason:
            part = "parts of its parameters are" if is_readable else "its parameters are"
            warnings.append(f"{function.name}: {part} not enforced: {reason}")
        found.append(function if is_readable else replace(function, strict=False))
    return tuple(found), warnings


@lru_cache(KEPT_LISTS)
def _all_checked(asked: tuple[Asked, ...], tool_format: str) -> list[tuple[str, bool]]:
    """What _checked says of each function, within the time that there is."""
    found: list[tuple[str, bool]] = []

    def check() -> list[tuple[str, bool]]:
        for each in asked:
            check_wanted()
            found.append(_checked(*each, tool_format))
        return found

    try:
        return BUDGET.within(check, "the parameters of tools") if asked else found
    except TimeoutError:
        *_, name = asked[min(len(found), len(asked) - 1)]
        raise RequestError(
            f"{name}: the schemas of {len(asked)} functions were not read in {BUDGET.seconds:g} s, and this one's not "
            "to its end: make it simpler, or give fewer functions"
        ) from None


@lru_cache(KEPT)
def _checked(parameters: str, strict: bool | None, name: str, tool_format: str) -> tuple[str, bool]:
    """Why the schema of a function is not enforced whole, "" where it is, and whether any of it can be."""
    function = Function(name, "", json.loads(parameters), strict)
    form = lookup(TOOL_FORMATS, tool_format, "tool_format")
    try:
        grammar = calls_grammar(form, [function], Choice("required"), control={})
    except ValueError as error:  # of a pattern
        return str(error)[:MAX_TOLD], False
    is_wrong, told = LLMatcher.validate_grammar_with_warnings(grammar)
    others = [] if is_wrong or strict is False else form.body.unenforced(function)
    return "; ".join(filter(None, [_reason(told), ", ".join(others)])), not is_wrong


def _reason(told: Sequence[str]) -> str:
    """The reasons in llguidance's words, without the grammar that it quotes."""
    reasons = [text.splitlines()[0].rpartition("failed to compile JSON schema: ")[2].strip() for text in told if text]
    return "; ".join(dict.fromkeys(reasons))[:MAX_TOLD]
