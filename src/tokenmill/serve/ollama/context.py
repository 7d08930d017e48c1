"""`context` of /api/generate: the token ids of a conversation so far, after which the next turn is put.

The ids stay as they are, so that the text goes on exactly, and finds its rows in the cache. What the chat template puts
between an answer and the end of the prompt is found by rendering the turn behind two different answers: it is the end
that both have in common.
"""

from collections.abc import Sequence as List
from typing import Any
from weakref import WeakKeyDictionary

from tokenmill.engine.core import Core
from tokenmill.errors import RequestError
from tokenmill.serve.http.errors import ApiError, about
from tokenmill.serve.request.calling import Calling
from tokenmill.serve.request.fields import ChatBody
from tokenmill.serve.request.prepare import chat_prompt
from tokenmill.text.tokenizer import Tokenizer

MOST_TRIED = 20_000  # ids, among which two words are looked for
NO_TURN = "this model's chat template puts no turn behind an answer, so send the conversation to /api/chat"

_words: WeakKeyDictionary[Tokenizer, list[str]] = WeakKeyDictionary()


def prompt_after(context: List[int], core: Core, body: ChatBody) -> tuple[Calling, list[int], list[str]]:
    """See chat_prompt, behind ids of an earlier answer. The body has one message, of the user."""
    calling, _, warnings = chat_prompt(core, body)
    before = ids_before(context, core)
    with about("context"):
        tokenizer = core.loaded.tokenizer
        assert tokenizer is not None, "the conversation was rendered"
        first, second = (_rendered(core, body, word) for word in _two_words(tokenizer))
        turn = _common_end(first, second)
        if len(turn) in (0, len(first), len(second)):
            raise RequestError(NO_TURN)
    if before[-1] == turn[0] and before[-1] in core.loaded.model_config.eos_token_ids + tokenizer.eos_token_ids:
        turn = turn[1:]  # the answer has ended itself
    return calling, [*before, *turn], warnings


def ids_before(context: List[int], core: Core) -> list[int]:
    """The ids of a context. ApiError for ids that the model does not have."""
    try:
        return core.inputs.encode(list(context))
    except RequestError as error:
        raise ApiError(400, f"context: {error}", "context") from None


def _rendered(core: Core, body: ChatBody, answer: str) -> list[int]:
    """The ids of a conversation in which the body's message follows an answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": answer}, {"role": "assistant", "content": answer}]
    return chat_prompt(core, body.model_copy(update={"messages": [*messages, *body.messages]}))[1]


def _common_end(first: List[int], second: List[int]) -> list[int]:
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return list(first[len(first) - count :])


def _two_words(tokenizer: Tokenizer) -> list[str]:
    """Two words that are a token each."""
    if tokenizer not in _words:
        found: list[str] = []
        for number in range(min(MOST_TRIED, tokenizer.backend.get_vocab_size())):
            text = tokenizer.decode([number], False).strip()
            if text.isalnum() and text.isascii() and tokenizer.encode(text, False) == [number]:
                found.append(text)
            if len(found) == 2:
                break
        else:
            raise RequestError(NO_TURN)
        _words[tokenizer] = found
    return _words[tokenizer]
