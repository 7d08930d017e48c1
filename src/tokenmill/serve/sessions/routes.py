"""The routes by which clients keep texts by name, and files, and have batches answered: requests in a file, when nobody
waits.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.engine.session import Session
from tokenmill.serve.facts.tokens import TokenizeBody, encode, warnings_for
from tokenmill.serve.http.errors import ApiError, Json, TooLong, about
from tokenmill.serve.loop.service import Call
from tokenmill.serve.request.fields import Body
from tokenmill.serve.sessions.batch_worker import OPEN_TENANT, BatchWorker
from tokenmill.serve.sessions.sessions import Sessions
from tokenmill.serve.sessions.stored import LISTED, MOST_LISTED, page_of

T = TypeVar("T")
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]
MAX_FIELDS = 8


class BatchBody(Body):
    """POST /v1/batches. A batch has no end of its time: completion_window is what OpenAI's API wants to be said."""

    UNSERVED: ClassVar = Body.UNSERVED | {"output_expires_after": ()}

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None


class Upload(BaseModel):
    """The form of POST /v1/files."""

    file: Annotated[bytes, Field(json_schema_extra={"format": "binary"})]
    purpose: Literal["batch"]


class Page(BaseModel):
    """The query of a list: where it begins, and how long it is."""

    after: Annotated[str, Field(max_length=100)] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = LISTED


class FilesPage(Page):
    """The query of the list of files."""

    order: Literal["asc", "desc"] = "desc"
    purpose: Annotated[str, Field(max_length=100)] | None = None


async def upload(call: Call) -> Json:
    """Keep a file, as a form with `file` and `purpose`."""
    _check_form(call.request)
    await _ask(call, lambda *_: None)  # whether files are kept at all, before one is read
    async with call.request.form(max_files=1, max_fields=MAX_FIELDS) as form:
        file = _file_in(dict(form))
        name = file.filename or "upload.jsonl"
        return await _ask(call, lambda at, tenant: at.files.add(tenant, file.file, name, "batch"))


async def files(call: Call) -> Json:
    """List the files of a client, the newest first."""
    query: FilesPage = call.query

    def found(at: BatchWorker, tenant: str) -> Json:
        mine = [each for each in at.files.all(tenant) if query.purpose in (None, each["purpose"])]
        return page_of(mine if query.order == "desc" else mine[::-1], query.after, query.limit)

    return await _ask(call, found)


async def file(call: Call) -> Json:
    """Tell of one file, without its content."""
    return await _ask(call, lambda at, tenant: at.files.read(tenant, call.name))


async def content(call: Call) -> Response:
    """Give the content of a file."""

    def found(at: BatchWorker, tenant: str) -> Response:
        at.files.read(tenant, call.name)  # which raises without such a file
        return FileResponse(at.files.content(tenant, call.name), media_type="application/jsonl")

    return await _ask(call, found)


async def delete(call: Call) -> Json:
    """Forget a file."""

    def deleted(at: BatchWorker, tenant: str) -> Json:
        if at.uses(tenant, call.name):
            raise ApiError(409, f"a batch that has not ended reads {call.name}: cancel it first", "id", "file_in_use")
        at.files.delete(tenant, call.name)
        return {"id": call.name, "object": "file", "deleted": True}

    return await _ask(call, deleted)


async def create_batch(call: Call) -> Json:
    """Have the requests of a file answered, when nobody waits."""
    call.service.check_ready()
    call.service.model.check(body := call.body)
    return await _ask(call, lambda at, tenant: at.create(tenant, body.endpoint, body.input_file_id, body.metadata))


async def batches(call: Call) -> Json:
    """List the batches of a client, the newest first."""
    return await _ask(call, lambda at, who: page_of(at.batches.all(who), call.query.after, call.query.limit))


async def batch(call: Call) -> Json:
    """Tell of one batch, and how far it is."""
    return await _ask(call, lambda at, tenant: at.read(tenant, call.name))


async def cancel(call: Call) -> Json:
    """End a batch with the answers that are there."""
    return await _ask(call, lambda at, tenant: at.cancel(tenant, call.name))


async def _ask(call: Call, do: Callable[[BatchWorker, str], T]) -> T:
    """Call a function with the worker and the name of the client's folder, in a thread, since it reads files."""
    if (worker := call.service.batches) is None:
        raise ApiError(404, "this server keeps no files and batches", code="no_batches")
    return await call.service.in_thread(call.request, do, worker, call.tenant.hex() or OPEN_TENANT)


def _file_in(form: Json) -> UploadFile:
    """Return the file of a form that is as it should be."""
    if unknown := [name for name in form if name not in ("file", "purpose")]:
        raise ApiError(400, f"{unknown[0][:100]} is not supported", unknown[0], "unsupported_parameter")
    if not isinstance(file := form.get("file"), UploadFile):
        raise ApiError(400, "file: send a file, in a form (multipart/form-data)", "file")
    if (purpose := form.get("purpose")) != "batch":
        raise ApiError(400, f"purpose = {str(purpose)[:100]!r} is not allowed: only 'batch'", "purpose")
    return file


def _check_form(request: Request) -> None:
    """Raise ApiError for no form, or one of a foreign web page: a browser asks nobody before it sends one."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise ApiError(403, f"a page of {origin[:100]} may not send files to this server")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise ApiError(415, "send the file in a form, with the header Content-Type: multipart/form-data")


async def save(call: Call) -> Json:
    """Keep a prompt or a conversation, with its rows."""
    service, body = call.service, call.body
    service.model.check(body)
    kept = _sessions(call)
    ids = await service.in_thread(call.request, _text, service.engine, body)
    begin: Callable[[bytes], Session] = lambda who: kept.begin(who, call.name, ids)  # noqa: E731
    saved = await _with_rows(call, begin, lambda who, session: kept.save(who, call.name, session))
    return saved | warnings_for(service.engine, body)


async def restore(call: Call) -> Json:
    """Load what was saved; requests that begin with it find its rows."""
    kept, name = _sessions(call), call.name
    return await _with_rows(call, lambda who: kept.open(who, name), lambda who, one: kept.hold(who, name, one))


async def erase(call: Call) -> Json:
    """Forget it."""
    kept, tenant = _sessions(call), call.tenant
    return await call.service.driver.call(lambda: kept.erase(tenant, call.name))


def _sessions(call: Call) -> Sessions:
    call.service.check_ready()
    if call.service.sessions is None:
        raise ApiError(404, "this server keeps no sessions", code="no_sessions")
    return call.service.sessions


async def _with_rows(call: Call, make: Callable[[bytes], Session], do: Callable[[bytes, Session], T]) -> T:
    """Make a session, have its rows beside what else runs, and do something with it."""
    driver, tenant = call.service.driver, call.tenant
    with call.service.admission.slots(1, tenant):
        session = await driver.call(lambda: make(tenant))
        return await driver.keep(session, tenant, lambda: do(tenant, session))


def _text(engine: Engine, body: TokenizeBody) -> list[int]:
    """Return the tokens that a session may keep."""
    ids = encode(engine, body)
    field = "prompt" if body.messages is None else "messages"
    if len(ids) > engine.config.max_length:
        raise TooLong(len(ids), engine.config.max_length, field)
    with about(field):
        return engine.encode(ids)  # which refuses an empty list
