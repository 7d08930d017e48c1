"""Arguments in XML tags, one for each property of an object, as several families of models write them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.constrain.tags.check import FormatError
from tokenmill.constrain.tags.contents import pattern_node, read, value_node
from tokenmill.constrain.tags.nodes import Node, apart, choice, concatenation, repetition
from tokenmill.constrain.tags.tokens import Tokens
from tokenmill.constrain.tags.words import BREAK, Word, text_without
from tokenmill.text.tools.kinds import TOLD, kinds_of, resolved, texts_of, with_definitions

_NAME = re.compile(r"""[^<>"\n]+""")
_READ = TOLD | {"properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
_OF_TEXT = TOLD | {"pattern", "minLength", "maxLength"}
_NO_TEXT = {"type": ["object", "array", "number", "boolean", "null"]}


@dataclass(frozen=True)
class Style:
    """How an argument is written: begin name middle [break between] value end. of_text: what stands before a value
    that is a text, where that is not what stands before others (middle).
    """

    begin: str
    middle: str
    end: str
    between: str = ""
    of_text: str = ""


STYLES: Mapping[str, Style] = {
    "qwen_xml": Style("<parameter=", ">", "</parameter>"),
    "minimax_xml": Style('<parameter name="', '">', "</parameter>"),
    "glm_xml": Style("<arg_key>", "</arg_key>", "</arg_value>", between="<arg_value>"),
    "deepseek_xml": Style(
        '<｜DSML｜parameter name="',  # noqa: RUF001  (the family's own letters)
        '" string="false">',
        "</｜DSML｜parameter>",  # noqa: RUF001
        of_text='" string="true">',
    ),
}


def xml_node(place: str, schema: Any, style: Style, tokens: Tokens) -> Node:
    """The arguments that an object must have and those that it may, in the schema's order. A line break may stand
    before each, behind the last, and around values that are no texts.
    """
    root = read(place, schema)
    found = resolved(root, root)
    if found.get("type") != "object":
        raise FormatError(place, 'must be a schema with "type": "object": its properties are the arguments')
    if unknown := sorted(key for key in found if key not in _READ and not key.startswith("x-")):
        raise FormatError(place, f"has the keyword {unknown[0]!r}, which is not enforced in this style")
    properties, required = found.get("properties") or {}, set(found.get("required") or ())
    if missing := sorted(required - properties.keys()):
        raise FormatError(place, f"requires {missing[0]!r:.60}, which is none of its properties")
    writer = _Writer(style, tokens, root)
    parts = list[Node]()
    for name, each in properties.items():
        if _NAME.fullmatch(name) is None:
            raise FormatError(place, f"has a property {name!r:.60}, which no tag can name")
        inner = f"{place}.properties.{name}"
        part = writer.argument(inner, tokens.text(inner, name), each)
        parts.append(part if name in required else repetition(part, 0, 1))
    others = found.get("additionalProperties", not properties)
    if others is not False:
        inner = f"{place}.additionalProperties"
        parts.append(repetition(writer.argument(inner, Word(inner, "/[A-Za-z_][A-Za-z0-9_]*/"), others), 0, None))
    return concatenation([*parts, Word(place, BREAK)])


@dataclass(frozen=True)
class _Writer:
    """Writes arguments apart, so that each begins and ends with words of its own."""

    style: Style
    tokens: Tokens
    root: Mapping[str, Any]

    def argument(self, place: str, name: Node, schema: Any) -> Node:
        """One argument."""
        style, around = self.style, Word(place, BREAK)
        kinds = kinds_of(schema, self.root)
        end = [self.tokens.text(place, style.end)]
        between = [around, self.tokens.text(place, style.between)] if style.between else []
        made = []
        if "string" in kinds:
            begin = [
                around,
                self.tokens.text(place, style.begin),
                name,
                self.tokens.text(place, style.of_text or style.middle),
            ]
            made.append(concatenation([*begin, *between, self._text(place, schema, kinds), *end], is_whole=True))
        if "string" not in kinds or (style.of_text and kinds != {"string"}):
            known = with_definitions(schema, self.root)
            known = {"allOf": [known, _NO_TEXT]} if "string" in kinds else known
            begin = [around, self.tokens.text(place, style.begin), name, self.tokens.text(place, style.middle)]
            made.append(
                concatenation([*begin, *between, around, value_node(place, known), around, *end], is_whole=True)
            )
        return choice([apart(each) for each in made])

    def _text(self, place: str, schema: Any, kinds: frozenset[str]) -> Node:
        """A value that is a text; without a style's word for that, also any other."""
        around, text = Word(place, BREAK), resolved(schema, self.root)
        excluded = self.tokens.letters([self.style.end])
        if kinds != {"string"}:
            return text_without(place, excluded)
        if texts := texts_of(schema, self.root):
            return concatenation(
                [around, choice([self.tokens.text(place, each) for each in texts]), around], is_whole=True
            )
        if unknown := sorted(key for key in text if key not in _OF_TEXT):
            raise FormatError(place, f"has the keyword {unknown[0]!r}, which is not enforced for a text in this style")
        if isinstance(text.get("pattern"), str):
            return concatenation([around, pattern_node(place, text["pattern"]), around], is_whole=True)
        return text_without(place, excluded, text.get("maxLength"), text.get("minLength", 0))
