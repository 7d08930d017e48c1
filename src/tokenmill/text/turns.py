"""The turns that a chat template takes: system messages among the others, two messages of one role in a row.

It is found by rendering a few conversations, once for each tokenizer and its templates.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tokenmill.errors import TokenmillError
from tokenmill.text.literal import chat_text
from tokenmill.text.tokenizer import Tokenizer

ASKED, ANSWERED, ASKED_AGAIN, TOLD, SAID_MORE = "qwoneq", "qwtwoq", "qwthreeq", "qwfourq", "qwfiveq"
FIRST, ANSWER = {"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}
SECOND, SYSTEM = {"role": "user", "content": ASKED_AGAIN}, {"role": "system", "content": TOLD}
MORE = {"role": "assistant", "content": SAID_MORE}


@dataclass(frozen=True)
class TurnRules:
    """The turns that a template takes. takes_system_inside: a system message after the first turn is put into the text
    there, and changes nothing else.

    takes_users_in_a_row: two messages of the user need no answer between them. takes_answers_in_a_row: nor do two of
    the assistant need a message of the user.
    """

    takes_system_inside: bool
    takes_users_in_a_row: bool
    takes_answers_in_a_row: bool


_found: WeakKeyDictionary[Tokenizer, tuple[tuple[str, ...], TurnRules]] = WeakKeyDictionary()
"""The rules of each tokenizer, with the templates that they were found for: an option may replace these."""


def turns_of(tokenizer: Tokenizer) -> TurnRules:
    """Return the turns that the chat template of a tokenizer takes."""
    known = _found.get(tokenizer)
    if known is None or known[0] != tokenizer.templates:
        users, answers = _text(tokenizer, FIRST, SECOND), _text(tokenizer, FIRST, ANSWER, MORE)
        is_whole = users is not None and ASKED in users and ASKED_AGAIN in users
        has_both = answers is not None and ANSWERED in answers and SAID_MORE in answers
        known = tokenizer.templates, TurnRules(_takes_system_inside(tokenizer), is_whole, has_both)
        _found[tokenizer] = known
    return known[1]


def _takes_system_inside(tokenizer: Tokenizer) -> bool:
    pairs = [((FIRST, ANSWER, SECOND), (FIRST, SYSTEM, ANSWER, SECOND)), ((FIRST,), (FIRST, SYSTEM))]
    for before, after in pairs:
        plain, told = _text(tokenizer, *before), _text(tokenizer, *after)
        if plain is None or told is None or not _is_inserted(plain, told):
            return False
    return True


def _is_inserted(plain: str, told: str) -> bool:
    """Return whether a text is another one with the system's words put into it, after the first turn."""
    if told.count(TOLD) != 1 or plain.count(ASKED) != 1:
        return False
    end = plain.index(ASKED) + len(ASKED)
    place = told.index(TOLD)
    if not (told.startswith(plain[:end]) and place >= end):
        return False
    head = 0
    while head < min(len(plain), len(told)) and plain[head] == told[head]:
        head += 1
    tail = len(plain) - head
    return told.endswith(plain[head:]) and head <= place and place + len(TOLD) <= len(told) - tail


def _text(tokenizer: Tokenizer, *messages: dict[str, str]) -> str | None:
    """Return a conversation's text; None where the template refuses it."""
    try:
        return chat_text(tokenizer, messages, add_generation_prompt=False)
    except TokenmillError:
        return None
