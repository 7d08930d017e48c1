"""POST /v1/embeddings: the vectors of texts, in OpenAI's form."""

import base64
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import JSONResponse, Response
from torch import Tensor

from tokenmill.engine.embedding import TextVectors, embed, says_pooling
from tokenmill.engine.engine import Engine
from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.loop.service import Call
from tokenmill.serve.openai.computed import MAX_TEXTS, computed, refusals
from tokenmill.serve.request.fields import Body, Int64, ListOf
from tokenmill.serve.request.prompt import unknown_warnings

UNTOLD = "the files of this model say no pooling: each vector is the row of a text's last token, of length 1"


class EmbeddingBody(Body):
    """POST /v1/embeddings. prompt_name: of a prompt in the model's files that stands before each text."""

    input: str | ListOf[str] | ListOf[Int64] | ListOf[ListOf[Int64]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: str | None = None
    user: str | None = None


async def embeddings(call: Call) -> Response:
    """Give the vector of a text, or of each of several."""
    call.service.check_ready()
    call.service.model.check(call.body)
    found = await vectors_of(call, call.body.input, call.body.dimensions, call.body.prompt_name)
    return await call.service.in_thread(call.request, _written, call, found)


async def vectors_of(
    call: Call, texts: Any, dimensions: int | None, prompt_name: str | None = None, truncate: bool = False
) -> TextVectors:
    """Compute the vectors, in a thread, unless the client leaves. ApiError for what is refused."""
    count = len(texts) if isinstance(texts, list) and not (texts and isinstance(texts[0], int)) else 1
    if not 1 <= count <= MAX_TEXTS:
        raise ApiError(400, f"input has {count} texts: 1 to {MAX_TEXTS} are allowed", "input")
    do: Json = {"dimensions": dimensions, "prompt_name": prompt_name, "truncate": truncate}
    return await computed(call, _computed, texts, do)


def _computed(engine: Engine, texts: Any, do: Json) -> TextVectors:
    with refusals(engine, "input"):
        return embed(engine.core, texts, **do)


def _written(call: Call, found: TextVectors) -> Response:
    """Write an answer, which may have millions of numbers."""
    body: EmbeddingBody = call.body
    write = _in_base64 if body.encoding_format == "base64" else Tensor.tolist
    data = [
        {"object": "embedding", "index": index, "embedding": write(vector)}
        for index, vector in enumerate(found.vectors)
    ]
    count = sum(found.num_tokens)
    warnings = unknown_warnings(body.unknown) + ([] if says_pooling(call.service.engine.core) else [UNTOLD])
    answer = {
        "object": "list",
        "data": data,
        "model": body.model or call.service.options.name,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    return JSONResponse(answer | ({"warnings": warnings} if warnings else {}))


def _in_base64(vector_D: Tensor) -> str:
    """Write the numbers as float32, little-endian."""
    return base64.b64encode(vector_D.numpy().astype("<f4").tobytes()).decode()
