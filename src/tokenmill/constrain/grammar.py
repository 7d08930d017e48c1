"""A constraint as settings have it, of any kind, becomes one grammar of llguidance's.

The grammar is a JSON text of one grammar or several, of which the first begins; equal constraints have equal texts.
"""

import json
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from tokenmill.constrain.gbnf import is_gbnf, lark_of_gbnf
from tokenmill.constrain.lark import with_options
from tokenmill.constrain.schema import read_schema
from tokenmill.constrain.structural_tag import lark_of_tags
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import CONSTRAINTS, shortened
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.grammar import think_first
from tokenmill.text.tools.lark import Lark, escaped


@dataclass(frozen=True)
class Spec:
    """A constraint that is not compiled. kind: the name of the setting; value: the setting's value.

    after: the constraint begins after this text, which a model writes at the end of its thinking; empty: at once.
    begin: the text before it may begin with this mark, or be absent; empty: it has begun.
    """

    kind: str
    value: str | tuple[str, ...]
    after: str = ""
    begin: str = ""


def spec_of(params: SamplingParams, after: str = "", begin: str = "") -> Spec | None:
    """The constraint of a sequence's settings; None without one."""
    given = [(name, value) for name in CONSTRAINTS if (value := getattr(params, name)) is not None]
    return Spec(*given[0], after, begin) if given else None


def grammar_text(spec: Spec, vocabulary: Vocabulary) -> str:
    """The grammar of a constraint. ConfigError where its kind has its own syntax and the value is wrong by it."""
    grammars = _MAKERS[spec.kind](spec.value, vocabulary)
    if spec.after:
        after = {"name": "after", "lark_grammar": _after(spec, vocabulary)}
        grammars = [after, {**grammars[0], "name": "constrained"}, *grammars[1:]]
    return json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))


def _after(spec: Spec, vocabulary: Vocabulary) -> str:
    """The grammar of a thought, the mark behind it, and what is constrained."""
    lark = Lark(vocabulary.control)
    start = think_first(lark, Thinking(spec.begin, spec.after), "@constrained", is_open=not spec.begin)
    return f"{lark}start: {start}\n"


def _of_schema(value: str, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return [{"name": "schema", "json_schema": with_options(read_schema(json.loads(value)))}]


def _of_regex(value: str, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return list(json.loads(LLMatcher.grammar_from_regex(value))["grammars"])


def _of_choice(value: tuple[str, ...], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return [{"name": "choice", "lark_grammar": f"start: /{'|'.join(map(escaped, value))}/"}]


def _of_grammar(value: str, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    if value.lstrip().startswith("{"):
        return _of_parts(value)
    if is_gbnf(value):
        value = lark_of_gbnf(value)
    return [{"name": "grammar", "lark_grammar": value}]


def _of_parts(value: str) -> list[dict[str, Any]]:
    """Several grammars that name one another, in llguidance's own form."""
    try:
        grammars = json.loads(value)["grammars"]
        if isinstance(grammars, list) and grammars and all(isinstance(each, dict) for each in grammars):
            return list(grammars)
    except (ValueError, KeyError, RecursionError, TypeError):
        pass
    raise ConfigError("grammar", shortened(value), "Lark, GBNF, or a JSON object with a list of `grammars`")


def _of_tags(value: str, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return lark_of_tags(json.loads(value), vocabulary.control)


_MAKERS: dict[str, Any] = {
    "json_schema": _of_schema,
    "regex": _of_regex,
    "choice": _of_choice,
    "grammar": _of_grammar,
    "structural_tag": _of_tags,
}
