"""Formats that no mark begins: texts, values, tokens, and what puts formats together."""

from tokenmill.constrain.tags.contents import grammar_node, pattern_node, value_node
from tokenmill.constrain.tags.fields import Given
from tokenmill.constrain.tags.nodes import NOTHING, Node, choice, concatenation, repetition
from tokenmill.constrain.tags.reader import End, Reader
from tokenmill.constrain.tags.words import text_without
from tokenmill.constrain.tags.xml import STYLES, xml_node

MAX_TIMES = 2000
"""How often a format may have to be repeated."""


def const_string(reader: Reader, it: Given, end: End) -> Node:
    """One text."""
    return reader.tokens.text(it.inner("value"), it.text("value"))


def json_schema(reader: Reader, it: Given, end: End) -> Node:
    """A value that fits a schema. White space is never written, so that any limit of it holds."""
    style = it.fields.get("style", "json")
    if style != "json" and style not in STYLES:
        raise it.wrong("style", f"= {style!r:.60} is not supported: json, {', '.join(STYLES)} are")
    if it.flag("any_order"):
        raise it.wrong("any_order", "is not supported: properties come in the order of the schema")
    if it.texts("excludes", may_lack=True):
        raise it.wrong("excludes", "is not supported here: a pattern in the schema can say it")
    it.number("max_whitespace_cnt")
    place, schema = it.inner("json_schema"), it.fields.get("json_schema")
    return value_node(place, schema) if style == "json" else xml_node(place, schema, STYLES[style], reader.tokens)


def qwen_xml_parameter(reader: Reader, it: Given, end: End) -> Node:
    """The old name of json_schema in the style qwen_xml."""
    return xml_node(it.inner("json_schema"), it.fields.get("json_schema"), STYLES["qwen_xml"], reader.tokens)


def any_text(reader: Reader, it: Given, end: End) -> Node:
    """Any text without some, nor one that ends the tag around it."""
    excluded = [*it.texts("excludes", may_lack=True), *filter(None, end.texts)]
    if (tokens := it.number("max_tokens")) == 0:
        return NOTHING
    if tokens is not None:
        raise it.wrong("max_tokens", "is not supported: max_chars is, and max_tokens of any_tokens")
    return text_without(it.place, reader.tokens.letters(excluded), it.number("max_chars"))


def grammar(reader: Reader, it: Given, end: End) -> Node:
    """A text that fits a grammar."""
    text = it.text("grammar", may_be_empty=False)
    return grammar_node(it.inner("grammar"), text, f"part_{reader.num_formats}")


def regex(reader: Reader, it: Given, end: End) -> Node:
    """A text that fits an expression."""
    return pattern_node(it.inner("pattern"), it.text("pattern", may_be_empty=False))


def sequence(reader: Reader, it: Given, end: End) -> Node:
    """Formats one after the other."""
    return concatenation(_elements(reader, it, end))


def one_of(reader: Reader, it: Given, end: End) -> Node:
    """One of several formats."""
    return choice(_elements(reader, it, end))


def optional(reader: Reader, it: Given, end: End) -> Node:
    """A format, or nothing."""
    return repetition(_content(reader, it, end), 0, 1)


def plus(reader: Reader, it: Given, end: End) -> Node:
    """A format, once or more often."""
    return repetition(_content(reader, it, end), 1, None)


def star(reader: Reader, it: Given, end: End) -> Node:
    """A format, any number of times."""
    return repetition(_content(reader, it, end), 0, None)


def repeat(reader: Reader, it: Given, end: End) -> Node:
    """A format, from min to max times; -1 for a max means that there is none."""
    least, most = it.number("min"), it.number("max", -1)
    if least is None or most is None:
        raise it.wrong("min" if least is None else "max", "must be a whole number")
    if most != -1 and least > most:
        raise it.wrong("min", f"= {least} is more than max = {most}")
    if max(least, most) > MAX_TIMES:
        raise it.wrong("max" if most > MAX_TIMES else "min", f"is at most {MAX_TIMES:,}, or -1 for a max")
    with reader.repeating(it.place, max(least, most, 1), MAX_TIMES):
        return repetition(_content(reader, it, end), least, None if most == -1 else most)


def token(reader: Reader, it: Given, end: End) -> Node:
    """One token."""
    return reader.tokens.one(it.inner("token"), reader.tokens.id_of(it.inner("token"), it.fields.get("token")))


def exclude_token(reader: Reader, it: Given, end: End) -> Node:
    """One token that is none of these, nor the one that ends the tag around it."""
    return reader.tokens.but(it.place, [*reader.tokens.ids(it, "exclude_tokens", may_lack=True), *end.token])


def any_tokens(reader: Reader, it: Given, end: End) -> Node:
    """Any number of such tokens."""
    most = it.number("max_tokens")
    if most is not None and most > MAX_TIMES:
        raise it.wrong("max_tokens", f"is at most {MAX_TIMES:,}")
    return repetition(exclude_token(reader, it, end), 0, most)


def _elements(reader: Reader, it: Given, end: End) -> list[Node]:
    found = it.items("elements")
    return [reader.node(f"{it.inner('elements')}[{number}]", each, end) for number, each in enumerate(found)]


def _content(reader: Reader, it: Given, end: End) -> Node:
    return reader.node(it.inner("content"), it.fields.get("content"), end)
