"""Formats with marks: tags, and free text or free tokens in which a trigger begins a tag."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tokenmill.constrain.tags.check import FormatError
from tokenmill.constrain.tags.fields import MAX_TEXTS, Given, given
from tokenmill.constrain.tags.nodes import Node, choice, concatenation, repetition
from tokenmill.constrain.tags.reader import End, Reader
from tokenmill.constrain.tags.words import text_until, text_without

TAG = {"tag": frozenset({"begin", "content", "end"})}
MAX_MARKS = 16
"""Triggers of one format of free text. Each is a word of its own, which each mask of the free text considers."""
_UNLIMITED = {"any_text", "triggered_tags", "token_triggered_tags", "dispatch", "token_dispatch", "any_tokens"}


class Tag(NamedTuple):
    """A tag that was read. begin: its text, or the id of its token. rest: the node of what follows begin."""

    place: str
    begin: str | int
    rest: Node


def tag(reader: Reader, it: Given, end: End) -> Node:
    """A format between two marks."""
    return _whole(reader, _tag_of(reader, it))


def triggered_tags(reader: Reader, it: Given, end: End) -> Node:
    """Any text, in which a trigger begins a tag."""
    tags, triggers = _tags(reader, it, str), it.texts("triggers")
    groups: dict[str, list[Node]] = {trigger: [] for trigger in triggers}
    if len(groups) < len(triggers):
        raise it.wrong("triggers", "has a text twice")
    for tag in tags:
        begin = str(tag.begin)
        found = [trigger for trigger in triggers if begin.startswith(trigger)]
        if len(found) != 1:
            fits = f"both {found[0]!r:.60} and {found[1]!r:.60}" if found else f"none of the triggers {triggers}"
            raise FormatError(f"{tag.place}.begin", f"= {begin!r:.60} begins with {fits:.200}; exactly one is wanted")
        begun = reader.tokens.text(f"{tag.place}.begin", begin[len(found[0]) :])
        groups[found[0]].append(concatenation([begun, tag.rest]))
    for number, trigger in enumerate(triggers):
        if not groups[trigger]:
            raise FormatError(f"{it.inner('triggers')}[{number}]", f"= {trigger!r:.60} begins no tag")
    excluded = [*it.texts("excludes", may_lack=True), *filter(None, end.texts)]
    is_once = it.flag("stop_after_first")
    rules = [(trigger, choice(group)) for trigger, group in groups.items()]
    free = _dispatched(reader, it, "triggers", rules, excluded, not is_once)
    if not it.flag("at_least_one"):
        return free
    first = choice([_whole(reader, tag) for tag in tags])
    return first if is_once else concatenation([first, free])


def dispatch(reader: Reader, it: Given, end: End) -> Node:
    """Any text, in which each pattern begins a format."""
    rules = []
    for place, first, second in _pairs(it):
        if not isinstance(first, str) or not first:
            raise FormatError(f"{place}[0]", "must be a text that is not empty")
        rules.append((first, reader.node(f"{place}[1]", second, end)))
    if len({pattern for pattern, _ in rules}) < len(rules):
        raise it.wrong("rules", "has a pattern twice")
    return _dispatched(reader, it, "rules", rules, it.texts("excludes", may_lack=True), it.flag("loop", default=True))


def tags_with_separator(reader: Reader, it: Given, end: End) -> Node:
    """Tags, with a text between them."""
    tag = choice([_whole(reader, tag) for tag in _tags(reader, it, None)])
    separator = reader.tokens.text(it.inner("separator"), it.text("separator"))
    others = repetition(concatenation([separator, tag]), 0, None)
    made = tag if it.flag("stop_after_first") else concatenation([tag, others])
    return made if it.flag("at_least_one") else repetition(made, 0, 1)


def token_triggered_tags(reader: Reader, it: Given, end: End) -> Node:
    """Any tokens, of which a trigger begins a tag."""
    tags, triggers = _tags(reader, it, int), reader.tokens.ids(it, "trigger_tokens")
    for tag in tags:
        if triggers.count(int(tag.begin)) != 1:
            raise FormatError(f"{tag.place}.begin", "must be exactly one of trigger_tokens")
    if unused := set(triggers) - {tag.begin for tag in tags}:
        raise it.wrong("trigger_tokens", f"has the token {min(unused)}, which begins no tag")
    whole = choice([_whole(reader, tag) for tag in tags])
    excluded = [*triggers, *reader.tokens.ids(it, "exclude_tokens", may_lack=True), *end.token]
    is_once = it.flag("stop_after_first")
    free = _dispatched_tokens(reader, it.place, whole, excluded, not is_once)
    if not it.flag("at_least_one"):
        return free
    return whole if is_once else concatenation([whole, free])


def token_dispatch(reader: Reader, it: Given, end: End) -> Node:
    """Any tokens, in which certain tokens each begin a format."""
    found, ids = [], []
    for place, first, second in _pairs(it):
        ids.append(reader.tokens.id_of(f"{place}[0]", first))
        found.append(
            concatenation([reader.tokens.one(f"{place}[0]", ids[-1]), reader.node(f"{place}[1]", second, end)])
        )
    if len(set(ids)) < len(ids):
        raise it.wrong("rules", "has a token twice")
    excluded = [*ids, *reader.tokens.ids(it, "exclude_tokens", may_lack=True)]
    return _dispatched_tokens(reader, it.place, choice(found), excluded, it.flag("loop", default=True))


def _pairs(it: Given) -> Iterator[tuple[str, Any, Any]]:
    """The place and the two sides of each rule."""
    for number, each in enumerate(it.items("rules")):
        place = f"{it.inner('rules')}[{number}]"
        if not isinstance(each, list) or len(each) != 2:
            raise FormatError(place, "must be a list of two: what begins it, and a format")
        yield place, each[0], each[1]


def _tags(reader: Reader, it: Given, begin: type | None) -> list[Tag]:
    """The tags of a list, which begin with texts or with tokens."""
    made = []
    for number, each in enumerate(it.items("tags")):
        place = f"{it.inner('tags')}[{number}]"
        reader.count(place)
        tag = _tag_of(reader, given(place, each, TAG, "tag")[1])
        if begin is not None and not isinstance(tag.begin, begin):
            raise FormatError(f"{place}.begin", "must be a text here" if begin is str else "must be a token here")
        made.append(tag)
    return made


def _tag_of(reader: Reader, it: Given) -> Tag:
    begin = it.fields.get("begin")
    if isinstance(begin, dict):
        begin = reader.tokens.of_object(it.inner("begin"), begin)
    elif not isinstance(begin, str):
        raise it.wrong("begin", 'must be a text or {"type": "token", "token": …}')
    end, mark = _end_of(reader, it)
    content = reader.node(it.inner("content"), it.fields.get("content"), end)
    if not end.token and not any(end.texts) and _is_unlimited(it.fields["content"]):
        raise it.wrong("end", "is empty, and the content has no end of its own")
    return Tag(it.place, begin, concatenation([content, mark]))


def _whole(reader: Reader, tag: Tag) -> Node:
    """The node of a tag with its begin."""
    place, begin = f"{tag.place}.begin", tag.begin
    mark = reader.tokens.text(place, begin) if isinstance(begin, str) else reader.tokens.one(place, begin)
    return concatenation([mark, tag.rest])


def _end_of(reader: Reader, it: Given) -> tuple[End, Node]:
    """The end of a tag, as formats inside of the tag have to know it, and the node of that end."""
    place, end = it.inner("end"), it.fields.get("end")
    if isinstance(end, dict):
        token = reader.tokens.of_object(place, end)
        return End(token=(token,)), reader.tokens.one(place, token)
    texts = [end] if isinstance(end, str) else end
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise it.wrong("end", 'must be a text, a list of texts, or {"type": "token", "token": …}')
    if len(texts) > MAX_TEXTS:
        raise it.wrong("end", f"has {len(texts)} texts; {MAX_TEXTS} are possible")
    return End(tuple(texts)), choice([reader.tokens.text(place, each) for each in texts])


def _is_unlimited(value: Any) -> bool:
    """Whether a format could go on for ever: it has no end of its own, and excludes no text or token."""
    kind = value["type"]
    if kind in _UNLIMITED:
        return not (value.get("excludes") or value.get("exclude_tokens"))
    if kind in ("sequence", "or"):
        return any(_is_unlimited(each) for each in value["elements"])
    if kind == "optional" or (kind == "repeat" and value["max"] != -1):
        return value.get("max") != 0 and _is_unlimited(value["content"])
    return kind in ("star", "plus", "repeat", "tags_with_separator")


def _dispatched(
    reader: Reader, it: Given, key: str, rules: Sequence[tuple[str, Node]], excluded: Sequence[str], loop: bool
) -> Node:
    """Free text in which each mark begins a node. With loop, free text follows the node; without it, nothing does."""
    marks = [mark for mark, _ in rules]
    if len(marks) > MAX_MARKS:
        raise it.wrong(key, f"has {len(marks)} texts; {MAX_MARKS} are possible, and one may begin any number of tags")
    for number, mark in enumerate(marks):
        place = f"{it.inner(key)}[{number}]"
        for other in (*marks, *excluded):
            if other != mark and other in mark:
                raise FormatError(place, f"= {mark!r:.60} holds {other!r:.60}, so that it could never come")
            if mark in other[1:-1]:
                raise FormatError(place, f"= {mark!r:.60} stands inside of {other!r:.60}, which is excluded")
            if other == mark and other in excluded:
                raise FormatError(place, f"= {mark!r:.60} is excluded, too")
    stops = reader.tokens.letters([*marks, *excluded])
    free, begun = text_without(it.place, stops), []
    for mark, node in rules:
        is_spelled = bool(reader.tokens.letters([mark]))
        place = it.inner(key)
        before = (
            text_until(place, mark, stops) if is_spelled else concatenation([free, reader.tokens.text(place, mark)])
        )
        begun.append(concatenation([before, node]))
    return concatenation([repetition(choice(begun), 0, None), free]) if loop else choice([free, *begun])


def _dispatched_tokens(reader: Reader, place: str, begun: Node, excluded: Iterable[int], loop: bool) -> Node:
    """As `_dispatched`, of tokens instead of text. begun: the node that a trigger token begins."""
    free = reader.tokens.but(place, excluded)
    if loop:
        return repetition(choice([free, begun]), 0, None)
    return concatenation([repetition(free, 0, None), repetition(begun, 0, 1)])
