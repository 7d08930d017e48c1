"""The text of /openapi.json beside the bodies of requests: statuses, ranges, keys and the model.

FastAPI documents a status that this server does not use, 422, and knows nothing of what stands before the routes. The
document is that of one server: it names the model that is served, and wants a key only if the server does.
"""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from tokenmill.serve.facts.answer_schema import ErrorAnswer
from tokenmill.serve.http.guard import OPEN_PATHS
from tokenmill.serve.loop.work import EVENTS, LINES
from tokenmill.serve.request.fields import ChatBody, CompletionBody
from tokenmill.serve.start.options import Options
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

Json = dict[str, Any]

RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
REFUSALS: dict[int, tuple[str, Json]] = {
    400: ("Something in the request is wrong; `param` names the field", {}),
    401: ("No key of this server", {}),
    403: ("A foreign Host, at a server that has no key and answers under the names of its machine only", {}),
    404: ("There is no such model, session, file or batch", {}),
    408: ("The body did not come in time", {}),
    409: ("The file of the session cannot be used; a batch has ended, or reads the file", {}),
    413: ("The body is too large", {}),
    415: ("The body is compressed, or does not say that it is JSON", {}),
    429: ("The queue is full", RETRY_AFTER),
    431: ("The headers are too many, or too large", {}),
    500: ("A fault of the server", {}),
    503: ("The server is shutting down, or the engine has failed", RETRY_AFTER),
    504: ("The request did not end within its `timeout`", {}),
    507: ("There is no room to write it", {}),
}
ALWAYS = (401, 403, 413, 415, 431, 500)
"""The statuses of refusals that any request may meet, most of them before it reaches a route."""


def answers(
    form: type[BaseModel] | None,
    *refusals: int,
    streams: bool = False,
    lines: bool = False,
    error: type[BaseModel] = ErrorAnswer,
) -> dict[int | str, Json]:
    """The `responses` of a route: the form of its answer, the statuses that it refuses with, and their form.

    streams, lines: the answer may also come as server-sent events, or as lines of JSON.
    """
    told = {
        **({EVENTS: "Server-sent events, each a chunk in JSON; the last is [DONE]"} if streams else {}),
        **({LINES: "Lines, each an object; `done` is true in the last, or it has an `error`"} if lines else {}),
    }
    # Of no type: OpenAPI 3.1 does not say whether this is the schema of the whole stream or of each event.
    kinds = {kind: {"schema": {"description": text}} for kind, text in told.items()}
    content = {"content": kinds} if kinds else {}
    found: dict[int | str, Json] = {200: {"description": "Done", **({"model": form} if form else {}), **content}}
    for status in sorted(refusals):
        text, headers = REFUSALS[status]
        found[status] = {"model": error, "description": text} | ({"headers": headers} if headers else {})
    return found


def set_document(app: FastAPI, options: Options) -> None:
    """Replace the application's document by one that tells the truth about this server."""
    plain = app.openapi

    def document() -> Json:
        if app.openapi_schema is None:
            found = plain()
            _describe_bodies(found["components"]["schemas"], options.name)
            _describe_routes(found, bool(options.keys))
            found["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["schema"]["examples"] = [options.name]
            for unused in ("HTTPValidationError", "ValidationError"):
                found["components"]["schemas"].pop(unused, None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _describe_bodies(schemas: Json, model: str) -> None:
    """Ranges, which SamplingParams has; the name of the model; and the only values of fields that are not served."""
    told = settings_of(SamplingParams)
    bounds: dict[str, Any] = {field: told[setting].limits for setting, field in HTTP_FIELDS.items()}
    # -1 stands for as many tokens as fit, or for any seed; 0 tokens are possible with echo alone
    bounds |= {name: {"minimum": -1} for name in ("max_tokens", "max_completion_tokens", "seed")}
    for kind in (CompletionBody, ChatBody):
        properties = schemas[kind.__name__]["properties"]
        for name, values in kind.UNSERVED.items():
            properties[name] = {"enum": [*values, None], "description": "not supported: no other value"}
        for name in properties.keys() & bounds.keys():
            _set_bounds(properties[name], bounds[name])
    for name in (
        "CompletionBody",
        "ChatBody",
        "MessagesBody",
        "CountBody",
        "ResponsesBody",
        "OllamaChatBody",
        "OllamaGenerateBody",
        "OllamaModelBody",
        "OllamaCopyBody",
        "OllamaEmbedBody",
        "TokenizeBody",
        "DetokenizeBody",
        "SessionBody",
        "BatchBody",
        "StreamOptions",
    ):
        required = schemas[name].get("required", ())
        for field, schema in schemas[name]["properties"].items():
            if field not in required:
                _allow_null(schema)
    for schema in schemas.values():
        if "model" in schema.get("properties", {}) and schema.get("additionalProperties") is True:
            is_needed = "model" in schema.get("required", ())
            schema["properties"]["model"] = {"enum": [model] if is_needed else [model, None]}


def _allow_null(schema: Json) -> None:
    """A field that need not be there may be null."""
    if "type" in schema:
        kept = {key: schema.pop(key) for key in list(schema) if key not in ("default", "title", "description")}
        schema["anyOf"] = [kept, {"type": "null"}]


def _set_bounds(schema: Json, bounds: Any) -> None:
    """Set the bounds of the numbers in a schema. A whole number is at least 1 unless its setting says otherwise."""
    for each in schema.get("anyOf", [schema]):
        if bounds and each.get("type") in ("integer", "number"):
            each.pop("minimum", None)
            each["exclusiveMinimum" if bounds.get("exclusive") else "minimum"] = bounds.get("minimum", 1)
            if "maximum" in bounds:
                each["maximum"] = bounds["maximum"]


def _describe_routes(document: Json, has_keys: bool) -> None:
    """Say who needs a key, show errors as JSON whatever the answer is in, and drop 422: a wrong body gets 400."""
    if has_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        needs_key = has_keys and path not in OPEN_PATHS
        for operation in operations.values():
            operation["security"] = [{"key": []}] if needs_key else []
            refusals = {status: each for status, each in operation["responses"].items() if status != "200"}
            own = refusals.get("400")  # which says the protocol's form; that of what stands before the routes is alike
            for status, each in refusals.items():
                if status in ("422", "403" if has_keys else "401") or (status == "401" and not needs_key):
                    del operation["responses"][status]
                else:
                    each["content"] = {"application/json": next(iter((own or each)["content"].values()))}
