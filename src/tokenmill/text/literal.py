"""A conversation as tokens, in which the contents of messages are encoded as plain text; a conversation as text.

A chat template makes one text of its own control tokens and of what people wrote. If somebody writes `<|im_end|>`, the
text alone does not tell whose it is. So before the template runs, each spelling of a control token in a message, and
each character that could begin or end one together with its neighbours (`<` in the first message, `|im_end|>` in the
second), is replaced by a mark: digits that nobody can guess, which a template passes on as it does any word. Where the
rendered text spells a control token with a character that a mark stood for, that is read as plain text: the whole is
encoded by a variant of the tokenizer that knows control tokens by secret names alone.

Tokens such as `<think>` and `</tool_response>` are no control tokens to a tokenizer, and yet give a conversation its
structure where the template writes them. They are treated so too, but not in what the assistant said, where templates
look for them. A number of a call that JSON would spell otherwise is replaced by a mark too, which as a whole number
passes through a template as it is, so that what a model wrote once is the same text in each later turn.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tokenmill.errors import RequestError
from tokenmill.registry import TEMPLATES, lookup
from tokenmill.text.backend import for_continuation, with_names
from tokenmill.text.tokenizer import Tokenizer

DIGITS = 20
DEEPEST = 100  # of lists and objects in a message; what lies deeper is refused by the template
_TAG = re.compile(r"</?[A-Za-z][\w:-]*>|\[/?[A-Z_]+\]")


class SpelledNumber(float):
    """A number that is shown as it was spelled, such as 1.50. spelling: its letters, as JSON text had them."""

    spelling: str

    def __new__(cls, spelling: str) -> "SpelledNumber":
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    allow_special: bool = False,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """Return the token ids of a conversation, rendered by the model's own chat template, up to the assistant's turn.

    Without `allow_special` nothing in a message, nor in `variables`, becomes a control token, and nothing in a message,
    unless it is the assistant's, becomes a token that the template writes. Where no message spells such a token, the
    ids are the same with and without it. continue_final_message: the ids end with the text of the last message, as in
    transformers' `apply_chat_template`. Errors are `render_chat`'s.
    """
    known = tokenizer.control_ids | _written(tokenizer, tokenizer.template_for(variables.get("tools")))
    control = sorted(known, key=len, reverse=True)
    marks = _Marks((), ()) if allow_special else _Marks(sorted(tokenizer.control_ids, key=len, reverse=True), control)
    end = marks.end if continue_final_message else ""
    num_others = len(messages) - bool(end)  # a message that is continued is the model's own
    shown = [marks.in_message(message) for message in messages[:num_others]] + list(messages[num_others:])
    if "tools" in variables:
        variables["tools"] = marks.in_value(variables["tools"])
    parts = marks.split(_rendered(tokenizer, shown, end, mark=marks.put, **variables))
    text = "".join(parts)
    if continue_final_message:
        _check_ends_with(text, messages[-1])
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(parts) == 1:
        return ids
    nonce, pattern = _nonce(), re.compile("|".join(map(re.escape, control)))
    names = {content: f"<{nonce}:{number}>" for content, number in known.items()}
    rename = partial(pattern.sub, lambda found: names[found[0]])
    # A control token is the template's own where it holds no character that a mark stood for.
    renamed = "".join(part if number % 2 else rename(part) for number, part in enumerate(parts))
    contents = _spellings(tokenizer, known)
    read = [number for number in ids if number in contents]
    if rename(text) == renamed and read == [known[content] for content in pattern.findall(text)]:
        return ids
    return _encode_literally(tokenizer, renamed, names, contents)


def encode_plain(tokenizer: Tokenizer, text: str, *, continues: bool = False) -> list[int]:
    """Return the token ids of a text in which names of control tokens are letters. continues: see Tokenizer.encode."""
    known, ids = tokenizer.control_ids, tokenizer.encode(text, add_special_tokens=False, continues=continues)
    contents = _spellings(tokenizer, known)
    if not any(number in contents for number in ids):
        return ids
    nonce = _nonce()
    names = {content: f"<{nonce}:{number}>" for content, number in known.items()}
    return _encode_literally(tokenizer, text, names, contents, continues)


def chat_text(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    continue_final_message: bool = False,
    **variables: Any,
) -> str:
    """Return a conversation as the text that transformers' `apply_chat_template` makes of it with tokenize=False.

    What a message spells stays as it is spelled, so control tokens in it count when the text is encoded.
    """
    text = _rendered(tokenizer, messages, _new_end() if continue_final_message else "", **variables)
    if continue_final_message:
        _check_ends_with(text, messages[-1])
    return text


def unread_variables(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> list[str]:
    """Return the names of variables that a chat template does not use, so that they change nothing.

    Errors are `render_chat`'s.
    """
    template = tokenizer.template_for(variables.get("tools"))
    used = lookup(TEMPLATES, "names", "chat_template")(template) if template is not None else ()
    return [name for name, value in variables.items() if value is not None and name not in used]


def _rendered(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], end: str, **variables: Any) -> str:
    """Render messages by the template; up to the text of the last one if `end`, a mark, is put after it."""
    render_chat = lookup(TEMPLATES, "jinja", "chat_template")
    shown = [*messages[:-1], _marked(messages[-1], end)] if end else messages
    template = tokenizer.template_for(variables.get("tools"))
    rendered = str(render_chat(template, shown, special_texts=tokenizer.special_texts, **variables))
    return _cut(rendered, end) if end else rendered


def _new_end() -> str:
    """Return a mark for the end of a message. The space shows whether the template strips messages."""
    return f"1{_nonce()} "


def _marked(message: Mapping[str, Any], end: str) -> Mapping[str, Any]:
    """Return a message whose text ends with a mark."""
    if not isinstance(text := message.get("content"), str):
        raise RequestError("the last message has no text that could be continued")
    return {**message, "content": text + end}


def _cut(rendered: str, end: str) -> str:
    """Return the text before the last mark. Where the template strips messages, the last one is stripped, too."""
    before, found, after = rendered.rpartition(end.rstrip())
    if not found:
        raise RequestError("this model's chat template does not show the last message, so it cannot be continued")
    return before if after.startswith(" ") else before.rstrip()


def _check_ends_with(text: str, message: Mapping[str, Any]) -> None:
    """Raise RequestError unless a text ends with the text of a message, apart from spaces around it.

    A template may move or drop parts of it, such as the reasoning before `</think>`; transformers refuses there too.
    """
    if not text.rstrip().endswith(message["content"].strip()):
        raise RequestError(
            "this model's chat template changes the text of the last message, so it cannot be continued: "
            "give the message as the template shows it, or without continue_final_message"
        )


class _Marks:
    """The marks of one conversation. control: the tokenizer's control tokens. known: these, and the tokens that the
    template writes. end: the mark behind the last message.
    """

    def __init__(self, control: Sequence[str], known: Sequence[str]) -> None:
        edges = {edge for text in control for edge in (text[0], text[-1]) if not (edge.isalnum() or edge.isspace())}
        firsts = "".join(map(re.escape, edges | {text[0] for text in control}))  # asked first, for speed
        # Tags such as `</think>` are no control tokens and stay as they are: templates look for them in messages.
        parts = [*map(re.escape, control), r"(?P<tag></?[A-Za-z][\w-]*>)", *map(re.escape, sorted(edges))]
        self._pattern = re.compile(f"(?=[{firsts}])(?:{'|'.join(parts)})" if control else r"(?!)(?P<tag>)")
        self._known = re.compile("|".join(map(re.escape, known)) if known else r"(?!)")
        self._nonce = f"1{_nonce()}"  # a number with a zero in front could be written without it
        self.end = _new_end()
        self._texts: list[str] = []  # what each mark stands for

    def put(self, text: str) -> str:
        return self._pattern.sub(lambda found: found[0] if found["tag"] is not None else self._mark(found[0]), text)

    def in_message(self, message: Any) -> Any:
        """Return a message in whose text, unless it is the assistant's, no token of the template is spelled."""
        if not isinstance(message, Mapping):
            return message
        if message.get("role") == "assistant":
            return {name: self._numbers(value) if name == "tool_calls" else value for name, value in message.items()}
        return {name: value if name == "role" else self.in_value(value) for name, value in message.items()}

    def in_value(self, value: Any, depth: int = 0) -> Any:
        """Return a value in whose texts and keys, however deep, no token of the template is spelled."""
        if isinstance(value, str):
            return self._known.sub(lambda found: self._mark(found[0]), value)
        if isinstance(value, Mapping) and depth < DEEPEST:
            return {self.in_value(name): self.in_value(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list | tuple) and depth < DEEPEST:
            return [self.in_value(inner, depth + 1) for inner in value]
        return value

    def _numbers(self, value: Any, depth: int = 0) -> Any:
        """Return a value in which each spelled number, however deep, is a mark."""
        if isinstance(value, SpelledNumber):
            return int(self._mark(value.spelling))
        if isinstance(value, Mapping) and depth < DEEPEST:
            return {name: self._numbers(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, list | tuple) and depth < DEEPEST:
            return [self._numbers(inner, depth + 1) for inner in value]
        return value

    def _mark(self, text: str) -> str:
        if text not in self._texts:
            self._texts.append(text)
        return f"{self._nonce}{self._texts.index(text):06d}"

    def split(self, rendered: str) -> list[str]:
        """Return the parts of a rendered text; a mark stood for every second one."""
        parts = re.split(rf"{self._nonce}(\d{{6}})", rendered)
        parts[1::2] = [self._texts[int(number)] for number in parts[1::2]]
        return parts


def _nonce() -> str:
    """Return digits that no message can hold but by chance."""
    return f"{secrets.randbelow(10**DIGITS):0{DIGITS}d}"


def _encode_literally(
    tokenizer: Tokenizer,
    renamed: str,
    names: Mapping[str, str],
    contents: Mapping[int, str],
    continues: bool = False,
) -> list[int]:
    """Return the token ids of a text whose control tokens are written with their secret `names`; other spellings of
    such tokens, their `contents`, are letters.
    """
    backend = tokenizer.backend
    variant, letters = with_names(backend, names), with_names(for_continuation(backend), names)  # with the same ids
    tokens = backend.get_added_tokens_decoder().items()
    added = {variant.token_to_id(names.get(token.content, token.content)): number for number, token in tokens}

    def ids_of(number: int) -> list[int]:
        """Return the tokenizer's own ids for an id of the variant."""
        if number in added or number not in contents:
            return [added.get(number, number)]
        # Merges can make a control token of its letters where the vocabulary holds it like any other token.
        content = contents[number]
        if len(content) == 1:
            raise RequestError(f"a message holds {content!r}, which this model reads as a control token: leave it out")
        halves = (content[: len(content) // 2], content[len(content) // 2 :])
        return [number for half in halves for part in letters.encode(half).ids for number in ids_of(part)]

    renamed = tokenizer.prepared(renamed, special=names.values(), continues=continues)
    encoder = letters if continues else variant
    return [number for part in encoder.encode(renamed, add_special_tokens=False).ids for number in ids_of(part)]


def _spellings(tokenizer: Tokenizer, known: Mapping[str, int]) -> dict[int, str]:
    """Return control tokens by id, without the one that stands for letters that are not in the vocabulary."""
    unknown = getattr(tokenizer.backend.model, "unk_token", None)
    return {number: content for content, number in known.items() if content != unknown}


def _written(tokenizer: Tokenizer, template: str | None) -> dict[str, int]:
    """Return the ids of tokens of the form <…> that are no control tokens, where a template writes them or their
    partners.
    """
    if template is None:
        return {}
    added = {token.content: number for number, token in tokenizer.backend.get_added_tokens_decoder().items()}
    tags = {content: number for content, number in added.items() if _TAG.fullmatch(content)}
    return {tag: number for tag, number in tags.items() if tag in template or _partner(tag) in template}


def _partner(tag: str) -> str:
    """Return the closing tag of an opening one, and the other way round."""
    return tag[0] + tag[2:] if tag[1] == "/" else f"{tag[0]}/{tag[1:]}"
