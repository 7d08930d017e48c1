"""The routes for tokens: text to token ids and back, and facts of the tokenizer."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.serve.facts.answer_schema import TextAnswer, TokenizerAnswer, TokensAnswer
from tokenmill.serve.facts.document import answers
from tokenmill.serve.http.errors import ApiError, about
from tokenmill.serve.loop.service import JsonRoute, Service
from tokenmill.serve.request.fields import DetokenizeBody, TokenizeBody
from tokenmill.serve.request.prepare import chat_prompt, template_warnings, warnings_of
from tokenmill.text.token_bytes import spelled_texts
from tokenmill.text.tokenizer import Tokenizer


def tokens(service: Service) -> APIRouter:
    """The routes."""
    routes, engine = APIRouter(route_class=JsonRoute), service.engine

    @routes.post("/tokenize", response_model=None, responses=answers(TokensAnswer, 400, 404, 408))
    async def tokenize(request: Request, body: TokenizeBody) -> Response:
        """Token ids of a prompt or of a conversation, with the model's limit."""
        service.check(body)
        return await service.in_thread(request, _tokenized, engine, body)

    @routes.post("/detokenize", response_model=None, responses=answers(TextAnswer, 400, 404, 408))
    async def detokenize(request: Request, body: DetokenizeBody) -> Response:
        """The text of token ids."""
        service.check(body)
        return await service.in_thread(request, _detokenized, engine, body)

    @routes.get("/tokenizer_info", response_model=None, responses=answers(TokenizerAnswer, 400))
    async def tokenizer_info() -> dict[str, Any]:
        """The tokenizer's config, with the chat template that is used."""
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

    return routes


def encode(engine: Engine, body: TokenizeBody) -> list[int]:
    """The token ids of what a body holds, a prompt or a conversation."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give a prompt or messages, one of the two", "prompt")
    if body.messages is not None:
        return chat_prompt(engine.core, body)[1]
    if isinstance(body.prompt, str):
        _tokenizer(engine)
    with about("prompt"):
        return engine.encode(body.prompt, body.add_special_tokens) if body.prompt else []


def warnings_for(engine: Engine, body: TokenizeBody | DetokenizeBody) -> dict[str, list[str]]:
    """The warnings of an answer: what its body says without effect, if there is anything."""
    found = warnings_of(body)
    if isinstance(body, TokenizeBody):
        found += [f"{name} is about messages, so it changes nothing of a prompt" for name in body.without_effect]
        found += [] if body.messages is None else template_warnings(engine.core, body)
    return {"warnings": found} if found else {}


# Answers may be millions of tokens long: they are made and written in a thread, and the event loop goes on.


def _tokenized(engine: Engine, body: TokenizeBody) -> Response:
    ids = encode(engine, body)
    texts = spelled_texts(engine.tokenizer, ids) if body.return_token_strs else None
    found = {"count": len(ids), "max_model_len": engine.config.max_length, "tokens": ids, "token_strs": texts}
    return JSONResponse(found | warnings_for(engine, body))


def _detokenized(engine: Engine, body: DetokenizeBody) -> Response:
    tokenizer = _tokenizer(engine)
    with about("tokens"):
        ids = engine.encode(body.tokens) if body.tokens else []
    return JSONResponse({"prompt": tokenizer.decode(ids, False), **warnings_for(engine, body)})


def _tokenizer(engine: Engine) -> Tokenizer:
    if engine.tokenizer is None:
        raise ApiError(400, "this model has no tokenizer")
    return engine.tokenizer
