"""Files and batches through OpenAI's own client: the same answers as the routes give, after a restart too."""

import io
import json
import threading
import time

import httpx2
import openai
import pytest

from tests.serve.conftest import MODEL, SETTINGS, served
from tests.serve.sessions.test_sessions import post
from tokenmill import load
from tokenmill.batches import batch
from tokenmill.batches.runner import BatchRunner
from tokenmill.batches.scan import scan
from tokenmill.memory.atomic_file import seal, unseal
from tokenmill.serve.sessions.batch_worker import BatchWorker
from tokenmill.serve.start.options import Options

BODIES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"w{number} w2"}], "max_tokens": 5, "seed": 3})
    for number in range(12)
]
COMPLETION = "/v1/completions"


def line(number, url, body, **more):
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body} | more


def jsonl(lines):
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines).encode()


@pytest.fixture
def keeping(chat_model, tmp_path):
    """Makes servers that keep their files in one folder."""

    def serve(**more):
        return served(chat_model, batch_dir=tmp_path / "batches", **more)

    return serve


def client_of(server, key="none"):
    plain = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120, http_client=plain)


def ended(client, batch):
    for _ in range(6000):
        if (found := client.batches.retrieve(batch.id)).status in ("completed", "failed", "cancelled"):
            return found
        time.sleep(0.01)
    raise AssertionError(f"the batch does not end: {found}")


def started(client, lines, endpoint="/v1/chat/completions", **more):
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def content(client, file):
    return [json.loads(each) for each in client.files.content(file).content.splitlines()]


def test_answers_are_those_of_the_route(keeping):
    with keeping() as server, client_of(server) as client:
        lines = [line(number, *each) for number, each in enumerate(BODIES)]
        refused = line("bad", BODIES[0][0], {"messages": [{"role": "user", "content": "w1"}], "temperature": -1})
        batch = started(client, [*lines[:5], refused, *lines[5:]], metadata={"name": "first"})
        assert batch.status == "validating" and batch.metadata == {"name": "first"} and batch.model == MODEL
        done = ended(client, batch)
        assert done.status == "completed" and done.errors is None
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (13, 12, 1)
        found = content(client, done.output_file_id)
        assert [each["custom_id"] for each in found] == [f"row-{number}" for number in range(12)]
        for (url, body), each in zip(BODIES, found, strict=True):
            answer = post(server, url, body).json()
            ours = each["response"]["body"]
            assert each["error"] is None and each["response"]["status_code"] == 200
            for own in (answer, ours):
                del own["id"], own["created"], own["usage"]["prompt_tokens_details"]
            assert ours == answer
        (wrong,) = content(client, done.error_file_id)
        assert wrong["custom_id"] == "row-bad" and wrong["response"]["status_code"] == 400
        assert wrong["response"]["body"]["error"]["param"] == "temperature"
        assert [each.id for each in client.batches.list()] == [batch.id]
        assert {each.purpose for each in client.files.list()} == {"batch", "batch_output"}
        assert [each.id for each in client.files.list(purpose="batch")] == [batch.input_file_id]


@pytest.mark.slow
def test_files(keeping):
    with keeping() as server, client_of(server) as client:
        made = [
            client.files.create(file=(f"{number}.jsonl", b"{}\n" * number), purpose="batch") for number in (1, 2, 3)
        ]
        assert client.files.retrieve(made[1].id) == made[1] and made[1].bytes == 6 and made[1].filename == "2.jsonl"
        assert {each.id for each in client.files.list(limit=1)} == {each.id for each in made}  # page by page
        assert client.files.content(made[2].id).content == b"{}\n" * 3
        assert client.files.delete(made[0].id).deleted
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(made[0].id)
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve("..%2f..%2fsecret")


def test_files_that_are_refused(keeping):
    with keeping(max_file=1000, max_stored=1500) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError, match="only 'batch'"):
            client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
        with pytest.raises(openai.APIStatusError, match="over") as caught:
            client.files.create(file=("a.jsonl", b"x" * 200_000), purpose="batch")
        assert caught.value.status_code == 413
        client.files.create(file=("a.jsonl", b"x" * 1000), purpose="batch")
        with pytest.raises(openai.InternalServerError, match="delete other files") as caught:
            client.files.create(file=("a.jsonl", b"x" * 1000), purpose="batch")
        assert caught.value.status_code == 507
        plain = httpx2.post(f"{server.url}/v1/files", json={"purpose": "batch"}, timeout=60)
        assert plain.status_code == 415
        form = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}, "timeout": 60}
        foreign = httpx2.post(f"{server.url}/v1/files", headers={"Origin": "https://elsewhere.example"}, **form)
        assert foreign.status_code == 403
        none = httpx2.post(f"{server.url}/v1/files", files={"other": ("a", b"")}, timeout=60)
        assert none.status_code == 400


@pytest.mark.slow
def test_an_input_that_is_no_batch(keeping):
    with keeping() as server, client_of(server) as client:
        good = line(1, *BODIES[0])
        lines = [good, "{broken", line(2, "/v1/embeddings", {}), line(3, *BODIES[0], method="GET"), {"custom_id": "x"}]
        done = ended(client, started(client, lines))
        assert done.status == "failed" and done.output_file_id is None
        told = [(each.line, each.code, each.param) for each in done.errors.data]
        assert told == [
            (2, "invalid_json_line", None),
            (3, "invalid_url", "url"),
            (4, "invalid_method", "method"),
            (5, "invalid_method", "method"),
        ]
        done = ended(client, started(client, [good, line(2, *BODIES[1]), good | {"body": BODIES[2][1]}]))
        assert "lines 1 and 3 have the same custom_id" in done.errors.data[0].message
        assert ended(client, started(client, [])).status == "failed"
        with pytest.raises(openai.NotFoundError):
            client.batches.create(input_file_id="file-" + "0" * 24, endpoint="/v1/completions", completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="endpoint"):
            started(client, [good], endpoint="/v1/embeddings")


@pytest.mark.slow
def test_keys_see_their_own(keeping):
    with keeping(keys=("one", "two")) as server, client_of(server, "one") as one, client_of(server, "two") as two:
        batch = started(one, [line(1, *BODIES[0])])
        assert ended(one, batch).status == "completed"
        assert not list(two.batches.list()) and not list(two.files.list())
        for call in (two.batches.retrieve, two.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch.id)
        with pytest.raises(openai.NotFoundError):
            two.files.content(batch.input_file_id)


@pytest.fixture
def held(monkeypatch):
    """Lets the worker note three answers, then waits until it is let go or its server ends."""
    seen, go = threading.Event(), threading.Event()
    note = BatchRunner._note

    def noted(runner, *given):
        note(runner, *given)
        if runner.counts.rows == 3:
            seen.set()
            while not (go.is_set() or runner.stop.wait(0.005)):
                pass

    monkeypatch.setattr(BatchRunner, "_note", noted)
    return seen, go


@pytest.mark.slow
def test_a_restart_goes_on(keeping, held, tmp_path):
    seen, go = held
    lines = [line(number, *each) for number, each in enumerate(BODIES)]
    with keeping() as server, client_of(server) as client:
        batch = started(client, lines)
        assert seen.wait(60)
        assert client.batches.retrieve(batch.id).status == "in_progress"
        with pytest.raises(openai.ConflictError, match="cancel it first"):
            client.files.delete(batch.input_file_id)
    (journal,) = tmp_path.rglob("*.journal")
    assert journal.read_bytes().count(b"\n") >= 4
    go.set()
    with keeping() as server, client_of(server) as client:
        done = ended(client, batch)
        found = content(client, done.output_file_id)
        assert [each["custom_id"] for each in found] == [f"row-{number}" for number in range(12)]
        other = started(client, lines)
        assert content(client, ended(client, other).output_file_id) == found
    assert not list(tmp_path.rglob("*.journal")) and not list(tmp_path.rglob("*.output.jsonl"))


@pytest.mark.slow
def test_a_restart_with_other_settings_begins_anew(keeping, held, tmp_path):
    """All answers are of one model and one setting. A server of another model leaves the batch for later."""
    seen, go = held
    body = {"prompt": "w1", "max_tokens": 6, "temperature": 1.0}
    lines = [line(number, COMPLETION, body) for number in range(8)]
    with keeping() as server, client_of(server) as client:
        batch = started(client, lines, COMPLETION)
        assert seen.wait(60)
    go.set()
    (record,) = tmp_path.rglob("batch_*.json")
    before = record.read_bytes()
    record.write_bytes(seal({"record": unseal(before, 1)["record"] | {"model": "another"}}, 1).encode())
    with keeping() as server, client_of(server) as client:
        other = started(client, lines[:1], COMPLETION)
        assert ended(client, other).status == "completed"  # which came later
        assert client.batches.retrieve(batch.id).status == "in_progress"
    record.write_bytes(before)
    with keeping(seed=5) as server, client_of(server) as client:
        texts = [
            each["response"]["body"]["choices"][0]["text"]
            for each in content(client, ended(client, batch).output_file_id)
        ]
        wanted = client.completions.create(model=MODEL, seed=5, **body).choices[0].text
    assert texts == [wanted] * 8


@pytest.mark.slow
def test_cancelled(keeping, held):
    seen, _ = held
    with keeping() as server, client_of(server) as client:
        batch = started(client, [line(number, *each) for number, each in enumerate(BODIES)])
        waiting = started(client, [line(1, *BODIES[0])])
        assert seen.wait(60)
        assert client.batches.cancel(waiting.id).status == "cancelling"
        assert client.batches.cancel(batch.id).status == "cancelling"
        done = ended(client, batch)
        assert done.status == "cancelled" and done.request_counts.completed >= 3
        assert len(content(client, done.output_file_id)) == done.request_counts.completed
        stopped = ended(client, waiting)
        assert (stopped.status, stopped.request_counts.completed) == ("cancelled", 0)
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch.id)


@pytest.mark.slow
def test_who_waits_goes_first(keeping):
    """With all places taken by a batch, a request of a client is answered before the batch has ended."""
    with keeping(settings={"max_sequences": 2}) as server, client_of(server) as client:
        body = {"prompt": "w1 w2", "max_tokens": 80, "temperature": 0}
        lines = [line(number, COMPLETION, body | {"seed": number}) for number in range(2000)]  # none waits for the last
        batch = started(client, lines, COMPLETION)
        while client.batches.retrieve(batch.id).request_counts.completed < 1:
            time.sleep(0.005)
        assert client.completions.create(model=MODEL, prompt="w7", max_tokens=3).usage.completion_tokens == 3
        assert client.batches.retrieve(batch.id).status == "in_progress"
        client.batches.cancel(batch.id)
        ended(client, batch)


def test_a_server_without_a_folder_says_so(server, client):
    with pytest.raises(openai.NotFoundError, match="keeps no files"):
        client.files.list()


def test_a_batch_that_another_server_finishes_is_not_computed_again(chat_model, tmp_path, monkeypatch):
    """Two servers share a folder; one still reads the input when the other is ready with it."""
    engine = load(chat_model, **SETTINGS)
    one, other = (BatchWorker(engine, Options(MODEL), tmp_path / "kept") for _ in range(2))
    file = one.files.add("open", io.BytesIO(jsonl([line(1, *BODIES[0])])), "in.jsonl", "batch")
    made = one.create("open", BODIES[0][0], file["id"], None)

    def read_for_long(*how):
        with monkeypatch.context() as undone:
            undone.setattr(batch, "scan", scan)
            one._run("open", made["id"])
        return scan(*how)

    monkeypatch.setattr(batch, "scan", read_for_long)
    other._run("open", made["id"])
    assert one.read("open", made["id"])["status"] == "completed" and other._progress is None
    assert not list(tmp_path.rglob("*.journal"))


def test_a_damaged_record_is_in_nobody_s_way(chat_model, tmp_path):
    worker = BatchWorker(load(chat_model, **SETTINGS), Options(MODEL), tmp_path)
    files = [worker.files.add("open", io.BytesIO(jsonl([line(1, *BODIES[0])])), "in.jsonl", "batch") for _ in range(2)]
    made = [worker.create("open", BODIES[0][0], file["id"], None) for file in files]
    worker.batches.path("open", made[0]["id"]).write_text("{")
    worker.files.path("open", files[0]["id"]).write_text("{")
    assert [each["id"] for each in worker.files.all("open")] == [files[1]["id"]]
    assert worker._next() == ("open", made[1]["id"])


def test_another_server_is_asked_to_cancel(chat_model, tmp_path):
    engine = load(chat_model, **SETTINGS)
    one, other = (BatchWorker(engine, Options(MODEL), tmp_path / "kept") for _ in range(2))
    lines = [line(number, *BODIES[number % 12]) for number in range(40)]
    file = one.files.add("open", io.BytesIO(jsonl(lines)), "in.jsonl", "batch")
    made = one.create("open", BODIES[0][0], file["id"], None)
    told = one._told

    def told_once(status, progress):
        if progress.num_done == 3:
            other.cancel("open", made["id"])
            one._look_at_s = 0.0
        told(status, progress)

    one._told = told_once
    one._run("open", made["id"])
    done = one.read("open", made["id"])
    assert done["status"] == "cancelled" and done["request_counts"]["completed"] < 40


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_batch_that_fails_gives_the_answers_that_are_there(chat_model, tmp_path, monkeypatch, has_journal):
    """Nothing that was computed is lost by a fault, also not by one that keeps the answers from being written."""
    engine = load(chat_model, **SETTINGS)
    worker = BatchWorker(engine, Options(MODEL), tmp_path)
    lines = [line(number, *BODIES[number % 12]) for number in range(30)]
    file = worker.files.add("open", io.BytesIO(jsonl(lines)), "in.jsonl", "batch")
    made = worker.create("open", BODIES[0][0], file["id"], None)
    note, noted = BatchRunner._note, []

    def fails(self, *given):
        note(self, *given)
        noted.append(given)
        if len(noted) == 5:
            raise ValueError("nobody has foreseen this")

    monkeypatch.setattr(BatchRunner, "_note", fails)
    with pytest.raises(ValueError, match="foreseen"):
        worker._run("open", made["id"])
    monkeypatch.undo()
    if not has_journal:
        monkeypatch.setattr(worker, "_files_of", lambda *_: 1 / 0)
    worker._fail("open", made["id"], [])
    done = worker.read("open", made["id"])
    assert done["status"] == "failed"
    if not has_journal:
        assert done["output_file_id"] is None and list(tmp_path.rglob("*.output.jsonl"))
        return
    found = [
        json.loads(each) for each in worker.files.content("open", done["output_file_id"]).read_bytes().splitlines()
    ]
    assert 4 <= len(found) == done["request_counts"]["completed"] < 30
    assert not list(tmp_path.rglob("*.journal")) and not list(tmp_path.rglob("*.output.jsonl"))
