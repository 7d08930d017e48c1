"""The routes for files and batches: what is not needed at once is answered when nobody waits."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from tokenmill.serve.batch_schema import (
    BatchAnswer,
    BatchBody,
    BatchesAnswer,
    DeletedAnswer,
    FileAnswer,
    FilesAnswer,
    Upload,
)
from tokenmill.serve.batch_worker import OPEN_TENANT, BatchWorker
from tokenmill.serve.document import answers
from tokenmill.serve.errors import ApiError
from tokenmill.serve.service import JsonRoute, Service, tenant_of
from tokenmill.serve.stored import LISTED, MOST_LISTED, page_of

T = TypeVar("T")
Json = dict[str, Any]
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": Upload.model_json_schema()}}}}
After = Annotated[str | None, Query(max_length=100)]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
MAX_FIELDS = 8


def batches(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    def worker() -> BatchWorker:
        if service.batches is None:
            raise ApiError(404, "this server keeps no files", code="no_batches")
        return service.batches

    async def ask(request: Request, do: Callable[[BatchWorker, str], T]) -> T:
        """Call a function with the worker and the client's folder, in a thread, since it reads files."""
        tenant = tenant_of(request)
        return await service.in_thread(request, do, worker(), tenant.hex() or OPEN_TENANT)

    @routes.post(
        "/v1/files", response_model=None, openapi_extra=FORM, responses=answers(FileAnswer, 400, 404, 408, 507)
    )
    async def upload(request: Request) -> Json:
        """Keep a file, as a form with `file` and `purpose`."""
        worker()
        _check_origin(request)
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as form:
            file, purpose = form.get("file"), form.get("purpose")
            if unknown := [name for name in form if name not in ("file", "purpose")]:
                raise ApiError(400, f"{unknown[0]} is not supported", unknown[0], "unsupported_parameter")
            if not isinstance(file, UploadFile):
                raise ApiError(400, "file: send a file, in a form (multipart/form-data)", "file")
            if purpose != "batch":
                raise ApiError(400, f"purpose = {purpose!r} is not allowed: only 'batch'", "purpose")
            name = file.filename or "upload.jsonl"
            return await ask(request, lambda at, tenant: at.files.add(tenant, file.file, name, "batch"))

    @routes.get("/v1/files", response_model=None, responses=answers(FilesAnswer, 400, 404))
    async def files(
        request: Request,
        after: After = None,
        limit: Limit = LISTED,
        order: Literal["asc", "desc"] = "desc",
        purpose: Annotated[str | None, Query(max_length=100)] = None,
    ) -> Json:
        """The files of a client, the newest first."""

        def listed(at: BatchWorker, tenant: str) -> Json:
            found = [each for each in at.files.all(tenant) if purpose is None or each["purpose"] == purpose]
            return page_of(found if order == "desc" else found[::-1], after, limit)

        return await ask(request, listed)

    @routes.get("/v1/files/{name}", response_model=None, responses=answers(FileAnswer, 404))
    async def file(name: str, request: Request) -> Json:
        """One file, without its content."""
        return await ask(request, lambda at, tenant: at.files.read(tenant, name))

    @routes.get("/v1/files/{name}/content", response_model=None, responses=answers(None, 404))
    async def content(name: str, request: Request) -> Response:
        """The content of a file."""

        def found(at: BatchWorker, tenant: str) -> Response:
            at.files.read(tenant, name)  # which raises if there is none
            return FileResponse(at.files.content(tenant, name), media_type="application/jsonl")

        return await ask(request, found)

    @routes.delete("/v1/files/{name}", response_model=None, responses=answers(DeletedAnswer, 404, 409))
    async def delete(name: str, request: Request) -> Json:
        """Forget a file."""

        def deleted(at: BatchWorker, tenant: str) -> Json:
            if at.uses(tenant, name):
                raise ApiError(409, f"a batch that has not ended reads {name}: cancel it first", "id", "file_in_use")
            at.files.delete(tenant, name)
            return {"id": name, "object": "file", "deleted": True}

        return await ask(request, deleted)

    @routes.post("/v1/batches", response_model=None, responses=answers(BatchAnswer, 400, 404, 408, 503, 507))
    async def create(body: BatchBody, request: Request) -> Json:
        """Have the requests of a file answered, when nobody waits."""
        service.check_ready()
        service.check(body)
        given = body.endpoint, body.input_file_id, body.metadata
        return await ask(request, lambda at, tenant: at.create(tenant, *given))

    @routes.get("/v1/batches", response_model=None, responses=answers(BatchesAnswer, 400, 404))
    async def all_batches(request: Request, after: After = None, limit: Limit = LISTED) -> Json:
        """The batches of a client, the newest first."""
        return await ask(request, lambda at, tenant: page_of(at.batches.all(tenant), after, limit))

    @routes.get("/v1/batches/{name}", response_model=None, responses=answers(BatchAnswer, 404))
    async def batch(name: str, request: Request) -> Json:
        """One batch, and how far it is."""
        return await ask(request, lambda at, tenant: at.read(tenant, name))

    @routes.post("/v1/batches/{name}/cancel", response_model=None, responses=answers(BatchAnswer, 404, 409, 507))
    async def cancel(name: str, request: Request) -> Json:
        """End a batch with the answers that are there."""
        return await ask(request, lambda at, tenant: at.cancel(tenant, name))

    return routes


def _check_origin(request: Request) -> None:
    """ApiError for a form that a foreign web page sends: a browser asks nobody before it sends one."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise ApiError(403, f"a page of {origin[:100]} may not send files to this server")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise ApiError(415, "send the file in a form, with the header Content-Type: multipart/form-data")
