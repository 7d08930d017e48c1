"""The routes for files that clients keep on the server: inputs of batches, and their outputs."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tokenmill.serve.facts.document import answers
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.loop.service import JsonRoute, Service, tenant_of
from tokenmill.serve.sessions.batch_schema import DeletedAnswer, FileAnswer, FilesAnswer, Upload
from tokenmill.serve.sessions.batch_worker import OPEN_TENANT, BatchWorker
from tokenmill.serve.sessions.stored import LISTED, MOST_LISTED, page_of

T = TypeVar("T")
Json = dict[str, Any]
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": Upload.model_json_schema()}}}}
After = Annotated[str | None, Query(max_length=100)]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
Purpose = Annotated[str | None, Query(max_length=100)]
MAX_FIELDS = 8


async def ask(service: Service, request: Request, do: Callable[[BatchWorker, str], T]) -> T:
    """Call a function with the worker and the name of the client's folder, in a thread, since it reads files."""
    if service.batches is None:
        raise ApiError(404, "this server keeps no files and batches", code="no_batches")
    return await service.in_thread(request, do, service.batches, tenant_of(request).hex() or OPEN_TENANT)


def files(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute, prefix="/v1/files")

    @routes.post("", response_model=None, openapi_extra=FORM, responses=answers(FileAnswer, 400, 404, 408, 507))
    async def upload(request: Request) -> Json:
        """Keep a file, as a form with `file` and `purpose`."""
        _check_form(request)
        await ask(service, request, lambda *_: None)  # whether files are kept at all, before one is read
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as form:
            file = _file_in(dict(form))
            name = file.filename or "upload.jsonl"
            return await ask(service, request, lambda at, tenant: at.files.add(tenant, file.file, name, "batch"))

    @routes.get("", response_model=None, responses=answers(FilesAnswer, 400, 404))
    async def listed(
        request: Request,
        after: After = None,
        limit: Limit = LISTED,
        order: Literal["asc", "desc"] = "desc",
        purpose: Purpose = None,
    ) -> Json:
        """The files of a client, the newest first."""

        def found(at: BatchWorker, tenant: str) -> Json:
            mine = [each for each in at.files.all(tenant) if purpose is None or each["purpose"] == purpose]
            return page_of(mine if order == "desc" else mine[::-1], after, limit)

        return await ask(service, request, found)

    @routes.get("/{name}", response_model=None, responses=answers(FileAnswer, 404))
    async def file(name: str, request: Request) -> Json:
        """One file, without its content."""
        return await ask(service, request, lambda at, tenant: at.files.read(tenant, name))

    @routes.get("/{name}/content", response_model=None, responses=answers(None, 404))
    async def content(name: str, request: Request) -> Response:
        """The content of a file."""

        def found(at: BatchWorker, tenant: str) -> Response:
            at.files.read(tenant, name)  # which raises if there is none
            return FileResponse(at.files.content(tenant, name), media_type="application/jsonl")

        return await ask(service, request, found)

    @routes.delete("/{name}", response_model=None, responses=answers(DeletedAnswer, 404, 409))
    async def delete(name: str, request: Request) -> Json:
        """Forget a file."""

        def deleted(at: BatchWorker, tenant: str) -> Json:
            if at.uses(tenant, name):
                raise ApiError(409, f"a batch that has not ended reads {name}: cancel it first", "id", "file_in_use")
            at.files.delete(tenant, name)
            return {"id": name, "object": "file", "deleted": True}

        return await ask(service, request, deleted)

    return routes


def _file_in(form: Json) -> UploadFile:
    """The file of a form that is as it should be."""
    if unknown := [name for name in form if name not in ("file", "purpose")]:
        raise ApiError(400, f"{unknown[0][:100]} is not supported", unknown[0], "unsupported_parameter")
    if not isinstance(file := form.get("file"), UploadFile):
        raise ApiError(400, "file: send a file, in a form (multipart/form-data)", "file")
    if (purpose := form.get("purpose")) != "batch":
        raise ApiError(400, f"purpose = {str(purpose)[:100]!r} is not allowed: only 'batch'", "purpose")
    return file


def _check_form(request: Request) -> None:
    """ApiError for what is no form, or one that a foreign web page sends: a browser asks nobody before it does."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise ApiError(403, f"a page of {origin[:100]} may not send files to this server")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise ApiError(415, "send the file in a form, with the header Content-Type: multipart/form-data")
