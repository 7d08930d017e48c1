"""A constraint as settings have it, of any kind, becomes one grammar of llguidance's.

The grammar is a JSON text of one grammar or several, of which the first begins; equal constraints have equal texts.
"""

import json
import re
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from itertools import count
from typing import Any

from llguidance import LLMatcher

from tokenmill.constrain.gbnf import is_gbnf, lark_of_gbnf
from tokenmill.constrain.own_lark import OwnLark
from tokenmill.constrain.room import check_wanted
from tokenmill.constrain.schema import annotations, parts_of, read_schema
from tokenmill.constrain.schema_parts import SchemaError
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import CONSTRAINTS, shortened
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.schema.ahead import whole_terminal
from tokenmill.text.schema.expression import PatternError, has_look, read
from tokenmill.text.schema.grammar import JsonStyle, rules_of
from tokenmill.text.schema.pattern import plain, whole
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.grammar import think_first
from tokenmill.text.tools.lark import FORCING, Lark, escaped

JSON_OPTIONS = {"whitespace_flexible": False, "lenient": False}
"""No white space outside of strings, which could go on for ever; keywords that are not implemented are errors."""
_STYLE = JsonStyle(JSON_OPTIONS)


@dataclass(frozen=True)
class Spec:
    """A constraint that is not compiled. kind: the name of the setting; value: the setting's value.

    after: the constraint begins after this text, which a model writes at the end of its thinking; empty: at once.
    begin: the text before it may begin with this mark, or be absent; empty: it has begun. is_open: objects of a JSON
    schema that name their properties may have others.
    """

    kind: str
    value: str | tuple[str, ...]
    after: str = ""
    begin: str = ""
    is_open: bool = False


def spec_of(params: SamplingParams, after: str = "", begin: str = "") -> Spec | None:
    """Return the constraint of a sequence's settings; None without one."""
    given = [(name, value) for name in CONSTRAINTS if (value := getattr(params, name)) is not None]
    return Spec(*given[0], after, begin, params.additional_properties) if given else None


def warnings_of(spec: Spec) -> list[str]:
    """List what the schema of a constraint says without effect. The constraint is one that grammar_text takes."""
    return annotations(json.loads(str(spec.value))) if spec.kind == "json_schema" else []


def grammar_text(spec: Spec, vocabulary: Vocabulary) -> str:
    """Write the grammar of a constraint. ConfigError where its kind has its own syntax and the value is wrong by it."""
    grammars = _MAKERS[spec.kind](spec, vocabulary)
    if spec.after:
        grammars = behind(lambda name: _after(spec, vocabulary, name), grammars)
    return text_of(grammars)


def is_forcing(spec: Spec, vocabulary: Vocabulary) -> bool:
    """Return whether llguidance looks for bytes that must come under a constraint: not under a grammar that a user has
    written, where the search may have no end. The text alone decides, so that a constraint means the same wherever it
    is read again. The bytes of a token that is named by its id are what the search reads for control tokens alone.
    """
    if spec.kind != "grammar":
        return True
    control = set(vocabulary.control.values()).difference(vocabulary.ends)
    return begins_forcing(str(spec.value)) and control.issuperset(map(int, _IDS.findall(str(spec.value))))


def begins_forcing(grammar: str) -> bool:
    """Return whether the first line of a grammar, or of the first of several, is FORCING. A request may not have it:
    only in a grammar of calls the search has an end.
    """
    if not grammar.lstrip().startswith("{"):
        return grammar.startswith(FORCING)
    try:
        return str(_parts(grammar)[0].get("lark_grammar")).startswith(FORCING)
    except ConfigError:  # compiling it says so
        return False


def without_forcing(grammar: str) -> str:
    """Write the same grammar so that llguidance forces no bytes under it."""
    grammars = json.loads(grammar)["grammars"]
    return text_of(behind(lambda name: f'%llguidance {{"no_forcing": true}}\nstart: {name}', grammars))


def text_of(grammars: List[dict[str, Any]]) -> str:
    """Write several grammars, of which the first begins, as one text."""
    return json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))


def behind(head: Callable[[str], str], grammars: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the grammars behind another one in Lark, which is made with the reference to the first of them. Whatever
    names they have, these stay what others refer to.
    """
    first, *others = grammars
    names = {each.get("name") for each in grammars}
    if not isinstance(name := first.get("name"), str) or not _REFERRED.fullmatch(name):  # nothing refers to it
        name = next(each for number in count() if (each := f"grammar-{number}") not in names)
    return [{"lark_grammar": head(f"@{name}")}, {**first, "name": name}, *others]


def _after(spec: Spec, vocabulary: Vocabulary, reference: str) -> str:
    """Write the grammar of a thought, the mark behind it, and what is constrained."""
    lark = Lark(vocabulary.control)
    start = think_first(lark, Thinking(spec.begin, spec.after), reference, is_open=not spec.begin)
    return f"{lark}start: {start}\n"


def with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a JSON schema the options by which it is read here."""
    return {**schema, "x-guidance": JSON_OPTIONS}


def json_grammar(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make the grammar of the values that fit a JSON schema. ValueError for a schema of which none can be made."""
    if (made := rules_of(schema, "json", _STYLE)) is None:
        return {"name": "schema", "json_schema": with_options(schema)}
    first, rules = made
    lines = (f"{each}: {body}" for each, body in rules.items())
    return {"name": "schema", "lark_grammar": "\n".join([f"start: {first}", *lines, ""])}


def _of_schema(spec: Spec, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    schema = read_schema(json.loads(str(spec.value)), is_open=spec.is_open)
    try:
        return [json_grammar(schema)]
    except ValueError as error:
        raise _placed(schema, error) from None


def _placed(schema: dict[str, Any], error: ValueError) -> SchemaError:
    """Return an error about a schema, with the place in it that is wrong by itself."""
    for path, part in parts_of(schema).items():
        check_wanted()
        try:
            json_grammar(part)
        except ValueError as found:
            if str(found) == str(error):
                return SchemaError(path, str(error))
    return SchemaError((), str(error))


def _of_regex(spec: Spec, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    value = str(spec.value)
    try:
        if has_look(read(value)):
            return [{"name": "regex", "lark_grammar": f"start: TEXT\nTEXT: {whole_terminal(value)}\n"}]
        expression = plain(whole(value))
    except PatternError as error:
        raise ConfigError("regex", shortened(value), str(error)) from None
    return list(json.loads(LLMatcher.grammar_from_regex(expression))["grammars"])


def _of_choice(spec: Spec, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    return [{"name": "choice", "lark_grammar": f"start: /{'|'.join(map(escaped, spec.value))}/"}]


def _of_grammar(spec: Spec, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    value = str(spec.value)
    if value.lstrip().startswith("{"):
        return [_read_part(value, each, vocabulary, number == 0) for number, each in enumerate(_parts(value))]
    lark = lark_of_gbnf(value) if is_gbnf(value) else value
    return [_read_part(value, {"name": "grammar", "lark_grammar": lark}, vocabulary, is_first=True)]


def _read_part(value: str, grammar: dict[str, Any], vocabulary: Vocabulary, is_first: bool) -> dict[str, Any]:
    """Read a grammar of a user, and write it as llguidance is to read it."""
    if not isinstance(text := grammar.get("lark_grammar"), str):
        return grammar
    lark = OwnLark(text.removeprefix(FORCING) if is_first else text, value)
    lark.check()
    return {**grammar, "lark_grammar": lark.spelled(vocabulary)}


def _parts(value: str) -> list[dict[str, Any]]:
    """Read several grammars that name one another, in llguidance's own form."""
    try:
        given = json.loads(value)
        grammars = given["grammars"]
        if isinstance(grammars, list) and grammars and all(isinstance(each, dict) for each in grammars):
            _check_keys(value, given, ("grammars",))
            for each in grammars:
                _check_keys(value, each, ("name", "lark_grammar", "json_schema"))
            return list(grammars)
    except (ValueError, KeyError, RecursionError, TypeError):
        pass
    raise ConfigError("grammar", shortened(value), "Lark, GBNF, or a JSON object with a list of `grammars`")


def _check_keys(value: str, given: Mapping[str, Any], known: List[str]) -> None:
    """Raise ConfigError for a key that would be passed over. llguidance itself writes some that are null."""
    if unknown := [key for key, each in given.items() if key not in known and each is not None]:
        raise ConfigError(
            "grammar", shortened(value), f"no key {shortened(unknown[0])!r}; there are {', '.join(known)}"
        )


_IDS = re.compile(r"<\[(\d+)\]>")
_REFERRED = re.compile(r"(?!\d+$)[A-Za-z0-9_\-]+")  # as Lark refers to it, where not by its number

_MAKERS: dict[str, Callable[[Spec, Vocabulary], list[dict[str, Any]]]] = {
    "json_schema": _of_schema,
    "regex": _of_regex,
    "choice": _of_choice,
    "grammar": _of_grammar,
}
