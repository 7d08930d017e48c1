"""The outcome of a server's batch: what makes an input no batch, and the files of answers and of errors."""

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile

from tokenmill.batches.formats.json_lines import JSONLines
from tokenmill.batches.row import dumps
from tokenmill.batches.scan import scan
from tokenmill.errors import RequestError
from tokenmill.serve.sessions.batch_lines import BatchLines
from tokenmill.serve.sessions.stored import Json, StoredFiles

MOST_FAULTS = 100


def divide(files: StoredFiles, tenant: str, batch: str, source: Path, target: Path) -> Json:
    """Divide an output among answers and errors, and keep both as files of the client; fields of the batch."""
    made: Json = {"output_file_id": None, "error_file_id": None}
    counts = {"completed": 0, "failed": 0}
    total = sum(1 for _ in JSONLines().rows(source))
    if target.exists():
        for name, count, wanted in (("output", "completed", True), ("error", "failed", False)):
            with TemporaryFile(dir=target.parent) as part:
                for row in JSONLines().rows(target):
                    if row.values is not None and _is_answer(row.values) == wanted:
                        part.write(f"{dumps(row.values)}\n".encode())
                        counts[count] += 1
                if counts[count]:
                    record = f"file-{sha256(f'{batch} {name}'.encode()).hexdigest()[:24]}"
                    files.add(tenant, part, f"{batch}_{name}.jsonl", "batch_output", record)
                    made[f"{name}_file_id"] = record
    return made | {"request_counts": {"total": total, **counts}}


def faults_of(source: Path, task: BatchLines) -> list[Json]:
    """What makes an input no batch, line by line; empty for one that can be run."""
    if not source.exists():
        return [fault("file_not_found", "the input file is not there any more", param="input_file_id")]
    found = []
    for row in JSONLines().rows(source):
        if (problem := task.problem(row)) is not None:
            code, message, field = problem
            found.append(fault(code, message, row.line, field))
            if len(found) == MOST_FAULTS:
                return found
    if not found:
        try:
            scan(source, task.id_field)
        except RequestError as error:
            message = str(error).removeprefix(f"{source}: ").removeprefix(f"{source} ")
            found.append(fault("invalid_input", message, param=task.id_field))
    return found


def fault(code: str, message: str, line: int | None = None, param: str | None = None) -> Json:
    """One error of a batch, as OpenAI's API has them."""
    return {"code": code, "line": line, "message": message, "param": param}


def _is_answer(values: Json) -> bool:
    response = values["response"]
    return response is not None and response["status_code"] == 200
