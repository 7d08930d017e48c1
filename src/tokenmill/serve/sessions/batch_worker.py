"""The worker of a server's batches: one thread, which runs them one after the other in the order of their creation.

Their requests have the lowest priority, and wait to be queued while a request of a client waits. Everything is on disk:
the records of files and batches, and beside an output its journal, so that a batch goes on after a restart, with the
same answers. A folder may be shared by several servers of one model: the lock of an output decides which of them runs
it.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tokenmill.batches.batch import BatchProgress, How, OutputTaken, opened
from tokenmill.batches.formats.json_lines import JSONLines
from tokenmill.batches.journal import NotWritten, OtherRun, journal_path
from tokenmill.batches.row import dumps
from tokenmill.batches.scan import scan
from tokenmill.engine.engine import Engine
from tokenmill.errors import RequestError, TokenmillError
from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.loop.driver import LOOKS_S
from tokenmill.serve.sessions.batch_lines import BatchLines
from tokenmill.serve.sessions.stored import Records, StoredFiles
from tokenmill.serve.start.options import Options

log = logging.getLogger(__name__)

PRIORITY = 2**63  # behind whatever a client may ask for
CLIENT = b"batches"
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
RETRY_S = 10.0  # after a full disk, or where another server runs a batch
LOOK_S = 1.0
MOST_TRIES = 3
MOST_FAULTS = 100
OPEN_TENANT = "open"  # of a server without keys


class BatchWorker:
    """The worker. files, batches: the records of clients. Its public methods may be called in any thread."""

    def __init__(self, engine: Engine, options: Options, folder: Path) -> None:
        self._engine, self._options = engine, options
        self.files = StoredFiles(folder, options.max_stored)
        self.batches = Records(folder, "batches", "batch_")
        self._changing = threading.Lock()  # of records
        self._wake, self._is_stopping = threading.Event(), False
        self._halt = threading.Event()  # for the batch that runs
        self._current: str | None = None
        self._progress: BatchProgress | None = None
        self._look_at_s = 0.0
        self._not_before: dict[str, float] = {}
        self._num_faults: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._work, name="tokenmill-batches", daemon=True)

    def start(self) -> None:
        """Begin with what is not finished yet."""
        self._thread.start()

    def begin_to_stop(self) -> None:
        """Have it end after the step that is being made; what is done is kept."""
        self._is_stopping = True
        self._halt.set()
        self._wake.set()

    def stop(self, is_hung: Callable[[], bool]) -> bool:
        """End the thread, and wait for that; return False where `is_hung` says that its step has no end."""
        self.begin_to_stop()
        while self._thread.is_alive():
            if is_hung():
                return False
            self._thread.join(LOOKS_S)
        return True

    def create(self, tenant: str, endpoint: str, file: str, metadata: Json | None) -> Json:
        """Queue a batch. ApiError 404 if there is no such file."""
        if self.files.read(tenant, file)["purpose"] != "batch":
            raise ApiError(400, f"{file} is an output: a batch needs a file of purpose batch", "input_file_id")
        times = ("in_progress", "expires", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        values = {
            "id": self.batches.new_id(),
            "object": "batch",
            "endpoint": endpoint,
            "model": self._options.name,
            "errors": None,
            "input_file_id": file,
            "completion_window": "24h",
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": int(time.time()),
            **{f"{each}_at": None for each in times},
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": metadata,
        }
        self.batches.write(tenant, values)
        self._wake.set()
        return values

    def read(self, tenant: str, batch: str) -> Json:
        """Return a batch, with the counts of this moment."""
        values = self.batches.read(tenant, batch)
        progress = self._progress if self._current == batch else None
        if progress is not None and values["status"] == "in_progress":
            failed = progress.counts.errors
            counts = {"total": progress.num_rows, "completed": progress.num_done - failed, "failed": failed}
            values["request_counts"] = counts
        return values

    def cancel(self, tenant: str, batch: str) -> Json:
        """Have a batch end with the answers that are there. ApiError 409 for one that has ended."""
        values = self._change(tenant, batch, "cancelling", OPEN[:3])
        if values["status"] != "cancelling":
            raise ApiError(409, f"{batch} has ended: it is {values['status']}", "id", "batch_ended")
        if self._current == batch:
            self._halt.set()
        self._wake.set()
        return values

    def uses(self, tenant: str, file: str) -> bool:
        """Return whether a batch that has not ended reads a file."""
        return any(each["input_file_id"] == file and each["status"] in OPEN for each in self.batches.all(tenant))

    def _change(self, tenant: str, batch: str, status: str, before: tuple[str, ...], **more: Any) -> Json:
        """Give a batch another status, if it has one of the statuses before; return the batch."""
        with self._changing:
            values = self.batches.read(tenant, batch)
            if values["status"] in before:
                values |= {"status": status, f"{status}_at": int(time.time()), **more}
                self.batches.write(tenant, values)
            return values

    # ---- in the thread

    def _work(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            if (found := self._next()) is None:
                self._wake.wait(RETRY_S)
                continue
            tenant, batch = found
            try:
                self._run(tenant, batch)
            except OutputTaken:
                self._not_before[batch] = time.monotonic() + RETRY_S
            except (NotWritten, ApiError, OSError) as error:
                log.warning("batch %s waits, and is tried again: %s", batch, getattr(error, "message", error))
                self._not_before[batch] = time.monotonic() + RETRY_S
            except TokenmillError as error:
                if not self._is_stopping:
                    told = str(error).replace(f"{self.files.folder(tenant)}{os.sep}", "")
                    self._fail(tenant, batch, [_fault("invalid_batch", told)])
            except Exception as error:  # noqa: BLE001  (it is logged, and the other batches go on)
                self._note_fault(tenant, batch, error)
            finally:
                self._current = self._progress = None

    def _note_fault(self, tenant: str, batch: str, error: Exception) -> None:
        """Try a batch again after what nobody has foreseen, as a step that has failed, but not for ever.

        If the whole server ends with it, the next start tries again.
        """
        log.error("batch %s has met a fault", batch, exc_info=error)
        self._num_faults[batch] += 1
        self._not_before[batch] = time.monotonic() + RETRY_S
        if self._num_faults[batch] == MOST_TRIES:
            with suppress(ApiError):
                self._fail(tenant, batch, [_fault("server_error", f"a fault of the server: {type(error).__name__}")])

    def _next(self) -> tuple[str, str] | None:
        """Return the oldest batch that can be run: its client, and its id."""
        found = []
        for tenant in self.batches.tenants():
            found += [(each["id"], tenant, each) for each in self.batches.all(tenant)]
        now_s = time.monotonic()
        due = [
            (batch, tenant)
            for batch, tenant, each in found
            if each["status"] in OPEN
            and each["model"] == self._options.name
            and self._not_before.get(each["id"], 0.0) <= now_s
        ]
        if not due:
            return None
        batch, tenant = min(due)
        return tenant, batch

    def _run(self, tenant: str, batch: str) -> None:
        """Run a batch to its end, or until the server stops."""
        self._halt.clear()
        self._current = batch
        values = self.batches.read(tenant, batch)
        if self._is_stopping:
            return
        source, target = self.files.content(tenant, values["input_file_id"]), self._target(tenant, batch)
        task = self._task(tenant, values["endpoint"])
        if values["status"] == "validating":
            if faults := _faults_of(source, task):
                self._fail(tenant, batch, faults)
                return
            values = self._change(tenant, batch, "in_progress", ("validating",))
        if values["status"] == "cancelling":
            self._halt.set()
        is_written = values["status"] in ("finalizing", "cancelling") and target.exists()
        if is_written or self._compute(source, target, task, lambda: self._status(tenant, batch)):
            self._finish(tenant, batch, target)

    def _compute(self, source: Path, target: Path, task: BatchLines, status: Callable[[], str]) -> bool:
        """Write the output; return False if the server stops before, or another one has finished the batch."""
        how = How(
            stop=self._halt,
            may_queue=self._nobody_waits,
            told=partial(self._told, status),
            most=self._engine.config.max_sequences,
            keeps_part=lambda: status() == "cancelling",
        )
        with opened(source, target, task) as opened_batch:
            if status() not in OPEN:
                return False
            try:
                summary = opened_batch.run(self._engine.core, how)
            except OtherRun as error:
                log.warning("a batch begins anew: %s", error)
                opened_batch.forget()
                summary = opened_batch.run(self._engine.core, how)
        return summary.is_whole or target.exists()

    def _told(self, status: Callable[[], str], progress: BatchProgress) -> None:
        """Note how far a batch is, and now and then whether another server was asked to cancel it."""
        self._progress = progress
        if (now_s := time.monotonic()) >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            if status() == "cancelling":
                self._halt.set()

    def _nobody_waits(self) -> bool:
        """Return whether only rows of batches wait. Called in the engine's thread."""
        return all(each.priority == PRIORITY for each in self._engine.core.scheduler.waiting)

    def _status(self, tenant: str, batch: str) -> str:
        return str(self.batches.read(tenant, batch)["status"])

    def _finish(self, tenant: str, batch: str, target: Path) -> None:
        """Give the client what was written, as the files of a batch that has ended."""
        self._change(tenant, batch, "finalizing", ("in_progress",))
        made = self._files_of(tenant, batch, target)
        end = self._change(tenant, batch, "completed", ("finalizing", "in_progress"), **made)
        if end["status"] == "cancelling":
            self._change(tenant, batch, "cancelled", ("cancelling",), **made)
        target.unlink(missing_ok=True)

    def _files_of(self, tenant: str, batch: str, target: Path) -> Json:
        """Divide an output among answers and errors, which become files of the client; return fields of the batch."""
        source = self.files.content(tenant, str(self.batches.read(tenant, batch)["input_file_id"]))
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
                        self.files.add(tenant, part, f"{batch}_{name}.jsonl", "batch_output", record)
                        made[f"{name}_file_id"] = record
        return made | {"request_counts": {"total": total, **counts}}

    def _fail(self, tenant: str, batch: str, faults: list[Json]) -> None:
        """End a batch with the answers that are there. Where they cannot be written, its journal is kept."""
        target, made = self._target(tenant, batch), Json()
        journal = journal_path(target)
        try:
            if journal.exists() or target.exists():
                made = self._answers_so_far(tenant, batch, target)
            for path in (target, journal):
                path.unlink(missing_ok=True)
        except Exception as error:
            log.error("the answers of batch %s, which has failed, stay in %s", batch, journal, exc_info=error)
        self._change(tenant, batch, "failed", OPEN, errors={"object": "list", "data": faults}, **made)

    def _answers_so_far(self, tenant: str, batch: str, target: Path) -> Json:
        """Return the files of a batch that is not run any more."""
        values = self.batches.read(tenant, batch)
        source, task = self.files.content(tenant, values["input_file_id"]), self._task(tenant, values["endpoint"])
        with opened(source, target, task) as opened_batch:
            self._halt.set()
            how = How(stop=self._halt, most=self._engine.config.max_sequences, keeps_part=lambda: True)
            opened_batch.run(self._engine.core, how)
        return self._files_of(tenant, batch, target)

    def _target(self, tenant: str, batch: str) -> Path:
        return self.batches.path(tenant, batch).with_name(f"{batch}.output.jsonl")

    def _task(self, tenant: str, endpoint: str) -> BatchLines:
        key = b"" if tenant == OPEN_TENANT else bytes.fromhex(tenant)
        options = self._options
        return BatchLines(options.name, options.seed, options.is_strict, endpoint, key, PRIORITY, CLIENT)


def _faults_of(source: Path, task: BatchLines) -> list[Json]:
    """Return what makes an input no batch, line by line; empty for one that can be run."""
    if not source.exists():
        return [_fault("file_not_found", "the input file is not there any more", param="input_file_id")]
    found = []
    for row in JSONLines().rows(source):
        if (problem := task.problem(row)) is not None:
            code, message, field = problem
            found.append(_fault(code, message, row.line, field))
            if len(found) == MOST_FAULTS:
                return found
    if not found:
        try:
            scan(source, task.id_field)
        except RequestError as error:
            message = str(error).removeprefix(f"{source}: ").removeprefix(f"{source} ")
            found.append(_fault("invalid_input", message, param=task.id_field))
    return found


def _fault(code: str, message: str, line: int | None = None, param: str | None = None) -> Json:
    """Make one error of a batch, as OpenAI's API has them."""
    return {"code": code, "line": line, "message": message, "param": param}


def _is_answer(values: Json) -> bool:
    response = values["response"]
    return response is not None and response["status_code"] == 200
