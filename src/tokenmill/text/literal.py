"""A conversation as tokens, in which what a message spells is letters and only the template's control tokens count.

text/marks.py says which characters of the rendered text come from messages. A spelling of a control token that holds
one of them is read as plain text, together with the text around it: the whole is encoded by a variant of the tokenizer
that knows control tokens by secret names alone, and only those of the template are written with these names.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from tokenmill.errors import RequestError
from tokenmill.text.chat import render_chat
from tokenmill.text.marks import Marks
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.variants import for_continuation, with_names

__all__ = ["encode_chat"]


def encode_chat(
    tokenizer: Tokenizer, messages: Iterable[Mapping[str, Any]], *, allow_special: bool = False, **variables: Any
) -> list[int]:
    """Token ids of a conversation, rendered by the model's own chat template, up to the assistant's turn.

    Without `allow_special` nothing in a message, nor in `variables`, becomes a control token; where no message spells
    one the ids are the same with and without. Errors are those of `render_chat`.
    """
    marks = Marks(() if allow_special else tokenizer.control_ids)
    try:
        marked = [marks.put(message) for message in messages]
        variables = {name: marks.put(value) for name, value in variables.items()}
    except RecursionError as error:
        raise RequestError("a chat message is nested too deep, or holds itself") from error
    rendered = render_chat(tokenizer.chat_template, marked, special_texts=tokenizer.special_texts, **variables)
    text, places = marks.take(rendered)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not places:
        return ids
    control, forged = _find_control(tokenizer, text, places)
    read = [number for number in ids if number in _spellings(tokenizer)]
    if not forged and read == [tokenizer.control_ids[text[place]] for place in control]:
        return ids
    return _encode_literally(tokenizer, text, control)


def _find_control(tokenizer: Tokenizer, text: str, places: list[range]) -> tuple[list[slice], bool]:
    """Where the text spells control tokens without a character of `places`; and whether it spells others."""
    literal = {position for place in places for position in place}
    spelled = map(re.escape, sorted(tokenizer.control_ids, key=len, reverse=True))
    pattern = re.compile("|".join(spelled))
    found, forged, start = [], False, 0
    while match := pattern.search(text, start):
        if literal.isdisjoint(range(*match.span())):
            found.append(slice(*match.span()))
            start = match.end()
        else:
            forged, start = True, match.start() + 1
    return found, forged


def _encode_literally(tokenizer: Tokenizer, text: str, control: list[slice]) -> list[int]:
    """Token ids of a text whose only control tokens are those at the places `control`."""
    nonce = f"{secrets.randbelow(10**20):020d}"
    names = {content: f"<{nonce}:{number}>" for content, number in tokenizer.control_ids.items()}
    pieces, last = [], 0
    for place in control:
        pieces += [text[last : place.start], names[text[place]]]
        last = place.stop
    variant = with_names(tokenizer.backend, names)
    ids = variant.encode("".join([*pieces, text[last:]]), add_special_tokens=False).ids
    tokens = tokenizer.backend.get_added_tokens_decoder()
    own = {names.get(token.content, token.content): number for number, token in tokens.items()}
    found = variant.get_added_tokens_decoder().items()
    added = {number: own[token.content] for number, token in found if token.content in own}
    letters = with_names(for_continuation(tokenizer.backend), names)  # its ids are those of `variant`
    contents = _spellings(tokenizer)

    def ids_of(number: int) -> list[int]:
        """Those of the tokenizer itself for one of the variant."""
        if number in added or number not in contents:
            return [added.get(number, number)]
        # Merges can make a control token of its letters where the vocabulary holds it like any other token.
        content = contents[number]
        if len(content) == 1:
            raise RequestError(f"a message holds {content!r}, which this model reads as a control token: leave it out")
        halves = (content[: len(content) // 2], content[len(content) // 2 :])
        return [number for half in halves for part in letters.encode(half).ids for number in ids_of(part)]

    return [number for part in ids for number in ids_of(part)]


def _spellings(tokenizer: Tokenizer) -> dict[int, str]:
    """Control tokens by id, without the one that stands for letters that are not in the vocabulary."""
    unknown = getattr(tokenizer.backend.model, "unk_token", None)
    return {number: content for content, number in tokenizer.control_ids.items() if content != unknown}
