"""The routes that tell about tokens."""

from typing import Any

from pydantic import model_validator
from starlette.responses import JSONResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.serve.http.errors import ApiError, about
from tokenmill.serve.loop.service import Call
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.fields import Body, Int64, ListOf, Messages, also, unknown_in
from tokenmill.serve.request.prompt import conversation_prompt, template_warnings, unknown_warnings
from tokenmill.text.token_bytes import bytes_of_each, spelled_texts
from tokenmill.text.tokenizer import Tokenizer


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or the messages of a conversation. content: a prompt, to which no special tokens are
    added unless that is asked for; with_pieces: each token with its text: llama.cpp's fields.
    """

    UNSERVED = Body.UNSERVED | {"chat_template": ()}

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = also("add_special_tokens", "add_special", default=True)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    return_token_strs: bool = True
    content: str | None = None
    with_pieces: bool = False

    @model_validator(mode="after")
    def _as_prompt(self) -> "TokenizeBody":
        if self.content is not None:
            if self.prompt is not None:
                message = "give content or prompt, one of the two: special tokens are added by default to prompt alone"
                raise ApiError(400, message, "content")
            self.prompt = self.content
            if "add_special_tokens" not in self.model_fields_set:
                self.add_special_tokens = False
        return self

    def check(self) -> None:
        """Raise ApiError, see Body."""
        super().check()
        if self.messages is not None and self.add_special_tokens and "add_special_tokens" in self.model_fields_set:
            message = "add_special_tokens is not supported with messages: their special tokens are the chat template's"
            raise ApiError(400, message, "add_special_tokens", "unsupported_parameter")

    @property
    def without_effect(self) -> list[str]:
        """Return the given fields that say how messages become a prompt, where there are no messages."""
        about_messages = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
        return [] if self.messages is not None else [name for name in about_messages if name in self.model_fields_set]

    @property
    def unknown(self) -> list[str]:
        """Return the names of unknown fields, see Body."""
        return [*super().unknown, *unknown_in(self.messages)]


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: ListOf[Int64]


async def tokenize(call: Call) -> Response:
    """Give the token ids of a prompt or of a conversation, with the model's limit."""
    call.service.model.check(call.body)
    return await call.service.in_thread(call.request, _tokenized, call.service.engine, call.body)


async def detokenize(call: Call) -> Response:
    """Give the text of token ids."""
    call.service.model.check(call.body)
    return await call.service.in_thread(call.request, _detokenized, call.service.engine, call.body)


async def tokenizer_info(call: Call) -> dict[str, Any]:
    """Give the tokenizer's config, with the chat template that is used."""
    engine = call.service.engine
    tokenizer = _tokenizer(engine)
    return {
        "model_max_length": engine.model_config.context,
        "added_tokens_decoder": {
            str(number): {"content": token.content, "special": token.special}
            for number, token in sorted(tokenizer.backend.get_added_tokens_decoder().items())
        },
        **tokenizer.config,
        **tokenizer.special_texts,
        "tokenizer_class": tokenizer.config.get("tokenizer_class", type(tokenizer.backend.model).__name__),
        "vocab_size": tokenizer.backend.get_vocab_size(with_added_tokens=True),
        "chat_template": tokenizer.chat_template,
    }


async def count_tokens(call: Call) -> dict[str, Any]:
    """Count the tokens of a conversation."""
    assert call.route.parse is not None, "the route has a parser"
    ask, core = call.route.parse(call.body, call.service.model), call.service.engine.core
    _, ids, _ = await call.service.in_thread(call.request, conversation_prompt, core, ask)
    return {"input_tokens": len(ids)}


def encode(engine: Engine, body: TokenizeBody) -> list[int]:
    """Return the token ids of what a body holds, a prompt or a conversation."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give a prompt or messages, one of the two", "prompt")
    if body.messages is not None:
        return conversation_prompt(engine.core, _ask(body))[1]
    if isinstance(body.prompt, str):
        _tokenizer(engine)
    with about("prompt"):
        return engine.encode(body.prompt, body.add_special_tokens) if body.prompt else []


def warnings_for(engine: Engine, body: TokenizeBody | DetokenizeBody) -> dict[str, list[str]]:
    """Return the warnings of an answer: what its body says without effect, if there is anything."""
    found = unknown_warnings(body.unknown)
    if isinstance(body, TokenizeBody):
        found += [f"{name} is about messages, so it changes nothing of a prompt" for name in body.without_effect]
        found += [] if body.messages is None else template_warnings(engine.core, _ask(body))
    return {"warnings": found} if found else {}


def _ask(body: TokenizeBody) -> Ask:
    return Ask(
        body.messages or [],
        tools=body.tools or [],
        variables=body.chat_template_kwargs or {},
        opens_answer=body.add_generation_prompt,
        continues_last=body.continue_final_message,
        is_as_sent=True,
    )


# Answers may be millions of tokens long: they are made and written in a thread, and the event loop goes on.


def _tokenized(engine: Engine, body: TokenizeBody) -> Response:
    ids = encode(engine, body)
    texts = spelled_texts(engine.tokenizer, ids) if body.return_token_strs else None
    shown: Any = ids
    if body.with_pieces:
        different = list(dict.fromkeys(ids))
        pieces = dict(zip(different, bytes_of_each(_tokenizer(engine), different), strict=True))
        shown = [{"id": token, "piece": _piece(pieces[token])} for token in ids]
    found = {"count": len(ids), "max_model_len": engine.config.max_length, "tokens": shown, "token_strs": texts}
    return JSONResponse(found | warnings_for(engine, body))


def _detokenized(engine: Engine, body: DetokenizeBody) -> Response:
    tokenizer = _tokenizer(engine)
    with about("tokens"):
        ids = engine.encode(body.tokens) if body.tokens else []
    text = tokenizer.decode(ids, False)
    return JSONResponse({"prompt": text, "content": text, **warnings_for(engine, body)})


def _piece(raw: bytes) -> str | list[int]:
    """Write the text of a token; its bytes where they are no whole characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _tokenizer(engine: Engine) -> Tokenizer:
    if engine.tokenizer is None:
        raise ApiError(400, "this model has no tokenizer")
    return engine.tokenizer
