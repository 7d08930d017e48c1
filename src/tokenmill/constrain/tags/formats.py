"""The types of formats, each with the keys that it may have and what reads it."""

from collections.abc import Mapping
from typing import Any

from tokenmill.constrain.tags import plain, tagged
from tokenmill.constrain.tags.check import Checked, FormatError, check
from tokenmill.constrain.tags.joined import TooMany, joined
from tokenmill.constrain.tags.reader import End, Reader, Type
from tokenmill.constrain.tags.stops import without_stops
from tokenmill.constrain.tags.tokens import Tokens
from tokenmill.constrain.vocabulary import Vocabulary

TYPES: Mapping[str, Type] = {
    kind: Type(frozenset(keys.split()), read)
    for kind, keys, read in (
        ("const_string", "value", plain.const_string),
        ("json_schema", "json_schema style any_order max_whitespace_cnt excludes", plain.json_schema),
        ("qwen_xml_parameter", "json_schema", plain.qwen_xml_parameter),
        ("any_text", "excludes max_tokens max_chars", plain.any_text),
        ("grammar", "grammar", plain.grammar),
        ("regex", "pattern", plain.regex),
        ("sequence", "elements", plain.sequence),
        ("or", "elements", plain.one_of),
        ("optional", "content", plain.optional),
        ("plus", "content", plain.plus),
        ("star", "content", plain.star),
        ("repeat", "min max content", plain.repeat),
        ("tag", "begin content end", tagged.tag),
        ("triggered_tags", "triggers tags at_least_one stop_after_first excludes", tagged.triggered_tags),
        ("tags_with_separator", "tags separator at_least_one stop_after_first", tagged.tags_with_separator),
        ("dispatch", "rules loop excludes", tagged.dispatch),
        ("token", "token", plain.token),
        ("exclude_token", "exclude_tokens", plain.exclude_token),
        ("any_tokens", "exclude_tokens max_tokens", plain.any_tokens),
        (
            "token_triggered_tags",
            "trigger_tokens tags exclude_tokens at_least_one stop_after_first",
            tagged.token_triggered_tags,
        ),
        ("token_dispatch", "rules loop exclude_tokens", tagged.token_dispatch),
    )
}


def read_format(value: Any, vocabulary: Vocabulary) -> Checked:
    """Read the format of a structural tag. FormatError for one that is refused."""
    node = without_stops(Reader(Tokens(vocabulary), TYPES).node("format", value, End()))
    if node is None:
        raise FormatError("format", "lets a text end nowhere: something would have to follow a token that ends it")
    try:
        return check(node)
    except FormatError as error:
        try:
            return check(joined(node))
        except (FormatError, TooMany):
            raise error from None
