"""POST /v1/rerank and /v1/score: how well documents answer a query, in the form of Jina, Cohere and vLLM."""

import time
from secrets import token_hex
from typing import Annotated, Any

from pydantic import Field

from tokenmill.engine.engine import Engine
from tokenmill.engine.reranking import Ranking, rerank
from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.loop.service import Call
from tokenmill.serve.openai.computed import MAX_TEXTS, computed, refusals
from tokenmill.serve.request.fields import Body, ListOf
from tokenmill.serve.request.prompt import unknown_warnings


class RerankBody(Body):
    """POST /v1/rerank. instruction: what the query asks for, for a decoder."""

    query: str
    documents: ListOf[str] | ListOf[dict[str, str]]
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool = False
    truncate: bool = False
    instruction: str | None = None
    user: str | None = None


class ScoreBody(Body):
    """POST /v1/score: one text beside each of the others, or two lists that are as long as each other."""

    text_1: str | ListOf[str]
    text_2: str | ListOf[str]
    truncate: bool = False
    instruction: str | None = None
    user: str | None = None


async def reranked(call: Call) -> Json:
    """Order documents by how well they answer a query."""
    call.service.check_ready()
    call.service.model.check(call.body)
    body = call.body
    texts = [_text_of(each) for each in body.documents]
    (found,) = await _rankings(call, [(body.query, texts)])
    scores = found.scores.tolist()
    results = [
        {"index": place, "relevance_score": scores[place]}
        | ({"document": {"text": texts[place]}} if body.return_documents else {})
        for place in found.order[: body.top_n or len(texts)]
    ]
    return _answer(call, "rerank", found.num_tokens) | {"results": results}


async def scored(call: Call) -> Json:
    """Score pairs of texts."""
    call.service.check_ready()
    call.service.model.check(call.body)
    body = call.body
    first, second = ([each] if isinstance(each, str) else each for each in (body.text_1, body.text_2))
    if len(first) not in (1, len(second)):
        told = f"text_1 has {len(first)} texts and text_2 {len(second)}: as many, or 1 in text_1"
        raise ApiError(400, told, "text_1")
    pairs = zip(first, second, strict=False)
    asked = [(first[0], second)] if len(first) == 1 else [(one, [other]) for one, other in pairs]
    found = await _rankings(call, asked)
    scores = [score for ranking in found for score in ranking.scores.tolist()]
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    counts = tuple(count for ranking in found for count in ranking.num_tokens)
    return _answer(call, "score", counts) | {"object": "list", "created": int(time.time()), "data": data}


def _text_of(document: Any) -> str:
    """Read a document, a text or an object with one, as Cohere's clients send it."""
    if isinstance(document, str):
        return document
    if document.keys() != {"text"}:
        told = f"a document has the fields {', '.join(document) or 'none'}, and only text is read"
        raise ApiError(400, told, "documents")
    return document["text"]  # type: ignore[no-any-return]


async def _rankings(call: Call, asked: list[tuple[str, list[str]]]) -> list[Ranking]:
    """Compute the scores, in a thread, unless the client leaves. ApiError for what is refused."""
    count = sum(len(documents) for _, documents in asked)
    if not 1 <= count <= MAX_TEXTS:
        raise ApiError(400, f"there are {count} documents: 1 to {MAX_TEXTS} are allowed", "documents")
    do: Json = {"truncate": call.body.truncate, "instruction": call.body.instruction}
    return await computed(call, _computed, asked, do)


def _computed(engine: Engine, asked: list[tuple[str, list[str]]], do: Json) -> list[Ranking]:
    with refusals(engine, "documents"):
        return [rerank(engine.core, query, documents, **do) for query, documents in asked]


def _answer(call: Call, kind: str, counts: tuple[int, ...]) -> Json:
    warnings = unknown_warnings(call.body.unknown)
    return {
        "id": f"{kind}-{token_hex(12)}",
        "model": call.body.model or call.service.options.name,
        "usage": {"prompt_tokens": sum(counts), "total_tokens": sum(counts)},
    } | ({"warnings": warnings} if warnings else {})
