"""Bodies of the routes for files and batches, and those of their answers, as OpenAI's API has them."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from tokenmill.serve.facts.answer_schema import Answer
from tokenmill.serve.request.fields import Body

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class BatchBody(Body):
    """POST /v1/batches. A batch has no end of its time: completion_window is what OpenAI's API wants to be said."""

    UNSERVED: ClassVar = Body.UNSERVED | {"output_expires_after": ()}

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None


class FileAnswer(Answer):
    """A file that is kept. bytes: of its content."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FilesAnswer(Answer):
    """Files, those of a page."""

    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedAnswer(Answer):
    """A file that is deleted."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchFault(Answer):
    """What is wrong with an input, and in which line."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(Answer):
    """All that was found, at most a hundred."""

    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(Answer):
    """Requests of a batch."""

    total: int
    completed: int
    failed: int


class BatchAnswer(Answer):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, Any] | None


class BatchesAnswer(Answer):
    """Batches, those of a page."""

    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Upload(BaseModel):
    """The form of POST /v1/files."""

    file: Annotated[bytes, Field(json_schema_extra={"format": "binary"})]
    purpose: Literal["batch"]
