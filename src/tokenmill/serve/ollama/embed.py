"""POST /api/embed, and /api/embeddings as it was before: the vectors of texts, in Ollama's form."""

import time
from typing import Annotated, Any

from pydantic import Field

from tokenmill.serve.http.errors import Json
from tokenmill.serve.loop.service import Call
from tokenmill.serve.ollama.names import check_served, nanoseconds
from tokenmill.serve.openai.embeddings import vectors_of
from tokenmill.serve.request.fields import Body, ListOf


class OllamaEmbedBody(Body):
    """POST /api/embed. A text that is too long is cut at its end unless truncate is false."""

    model: str = Field(min_length=1)
    input: str | ListOf[str]
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class OllamaEmbeddingsBody(Body):
    """POST /api/embeddings, which older clients call: one text."""

    model: str = Field(min_length=1)
    prompt: str
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


async def embed(call: Call) -> Json:
    """Give the vectors of texts, each of length 1."""
    begun_s, body = time.perf_counter(), call.body
    call.service.check_ready()
    body.check()
    check_served(body.model, call.service.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    found = await vectors_of(call, texts, body.dimensions, truncate=body.truncate)
    return {
        "model": body.model,
        "embeddings": found.vectors.tolist(),
        "total_duration": nanoseconds(time.perf_counter() - begun_s),
        "load_duration": 0,
        "prompt_eval_count": sum(found.num_tokens),
    }


async def embeddings(call: Call) -> Json:
    """Give the vector of one text, as /api/embed does, in the older form."""
    call.service.check_ready()
    call.body.check()
    check_served(call.body.model, call.service.model)
    found = await vectors_of(call, [call.body.prompt], None, truncate=True)
    return {"embedding": found.vectors[0].tolist()}
