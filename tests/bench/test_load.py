"""Load on a server: what is sent when, what is read, the arithmetic, and every way in which a server may fail."""

import json
import math
import signal
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tokenmill.bench import load as load_module
from tokenmill.bench.address import endpoint
from tokenmill.bench.load import LoadTest, arrivals_s, build_asks, find_model, send
from tokenmill.bench.load_report import AnswerStream, Failure, Outcome, Record, figures
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.measure import files

PATIENCE_S = 600  # of a server that waits for others: only a failing test gets there
VLLM_KEYS = """date backend endpoint_type label model_id tokenizer_id num_prompts request_rate burstiness
max_concurrency duration completed
failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
total_token_throughput max_output_tokens_per_s max_concurrent_requests rtfx""".split()
DETAILS = "input_lens output_lens start_times ttfts itls generated_texts errors latencies queue_times".split()


# ---- a server that does what it is told


class Server:
    """Answers as `script` says: a function of the handler, called for every POST. Use as a context manager."""

    def __init__(self, script):
        self.script, self.bodies, self.headers, self.paths = script, [], [], []
        self.in_flight = self.max_in_flight = 0
        self.lock, self.closing = threading.Lock(), threading.Event()
        handler = type("Handler", (_Handler,), {"server_of": self})
        # The default of 5 makes a sixth caller wait for a second. Handlers that are no daemons are waited for at the
        # end, so that what they say of a client that has left does not come into another test.
        kind = type("Quick", (ThreadingHTTPServer,), {"request_queue_size": 256, "daemon_threads": False})
        self.http = kind(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.models = json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode()
        self.models_status = 200

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_of: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.whole(self.server_of.models_status, self.server_of.models)

    def do_POST(self):
        server = self.server_of
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.headers.append(self.headers)
            server.paths.append(self.path)
            self.number = len(server.bodies)
            server.in_flight += 1
            server.max_in_flight = max(server.max_in_flight, server.in_flight)
        self.left = False
        server.script(self)
        self.leave()

    def leave(self):
        """Counted before the last byte: whoever reads that byte may send the next request."""
        if not self.left:
            self.left = True
            with self.server_of.lock:
                self.server_of.in_flight -= 1

    def whole(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def block(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, document):
        self.block(b"data: " + json.dumps(document).encode() + b"\n\n")

    def end(self):
        self.leave()
        self.wfile.write(b"0\r\n\r\n")

    def drop(self):
        self.leave()
        self.close_connection = True

    def log_message(self, *_):
        pass


def piece(text, finish_reason=None, **more):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}], **more}


def delta(content, finish_reason=None):
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish_reason}], "usage": None}


def usage(prompt, completion):
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def answer(handler, num_pieces=3, usages=True, done=True):
    handler.begin()
    for _ in range(num_pieces):
        handler.event(piece("ab "))
    handler.event(piece("", "length"))
    if usages:
        handler.event(usage(7, 2 * num_pieces))
    handler.leave()  # whoever reads what follows may send another request before this line is over
    if done:
        handler.block(b"data: [DONE]\n\n")
    handler.end()


def chat(handler):
    handler.begin()
    handler.block(b": keep-alive\n\n")
    handler.event(delta({"role": "assistant", "content": ""}))
    handler.event(delta({"reasoning_content": "hm"}))
    handler.event(delta({"content": "yes"}))
    handler.event(delta({}, "stop"))
    handler.event(usage(9, 2))
    handler.block(b"data: [DONE]\n\n")
    handler.end()


def refuse(handler):
    handler.leave()
    handler.whole(429, b'{"error": {"message": "the queue\\u0007 is full", "code": 429}}')


def drop(handler):
    handler.begin()
    handler.event(piece("a"))
    handler.drop()


def hang(handler):
    handler.begin()
    handler.event(piece("a"))
    handler.server_of.closing.wait(PATIENCE_S)
    handler.drop()


def garbage(handler):
    handler.begin()
    handler.event(piece("a"))
    handler.block(b"data: {oops\n\n")
    handler.end()


def error_event(handler):
    handler.begin()
    handler.event({"error": {"message": "out of blocks"}})
    handler.end()


def silence(handler):
    handler.begin()
    handler.block(b"data: [DONE]\n\n")
    handler.end()


def cut_short(handler):
    handler.begin()
    handler.event(piece("a"))
    handler.end()


def linger(handler):
    """A whole answer, but the connection stays open."""
    handler.begin()
    handler.event(piece("a", "stop"))
    handler.event(usage(7, 1))
    handler.block(b"data: [DONE]\n\n")
    handler.server_of.closing.wait(PATIENCE_S)
    handler.drop()


def run(server, **settings):
    load = LoadTest(url=server.url, **settings)
    return send(load, find_model(load), build_asks(load))


# ---- what is sent


def test_a_request_asks_for_a_stream_with_usage():
    with Server(answer) as server:
        outcome = run(server, num_prompts=1, prompt=5, new=9, api_key="sesame")
    (body,) = server.bodies
    assert body.pop("prompt").count(" ") == 4
    assert body == {
        "model": "first",
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert server.paths == ["/v1/completions"]
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    assert outcome.records[0].ok


def test_chat_counts_content_and_thoughts_but_no_role():
    with Server(chat) as server:
        outcome = run(server, num_prompts=2, chat=True, prompt=4)
    assert server.paths == ["/v1/chat/completions"] * 2
    ((message,), _) = (body["messages"] for body in server.bodies)
    assert message["role"] == "user"
    assert len(message["content"].split()) == 4
    for record in outcome.records:
        assert record.ok
        assert record.texts == ["hm", "yes"]
        assert (record.input_tokens, record.output_tokens) == (9, 2)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_as_other_clients_want_it(end):
    assert endpoint("http://h:1" + end, "models") == "http://h:1/v1/models"


def test_the_same_seed_gives_the_same_prompts():
    few, many = LoadTest(num_prompts=3, seed=5), LoadTest(num_prompts=30, seed=5)
    assert build_asks(many)[:3] == build_asks(few)
    assert build_asks(LoadTest(num_prompts=3, seed=6)) != build_asks(few)
    texts = [ask.body["prompt"] for ask in build_asks(many)]
    assert len(set(texts)) == 30
    assert {len(text.split()) for text in texts} == {128}


def test_ids_instead_of_words():
    load = LoadTest(num_prompts=20, prompt=50, vocab_size=97)
    ids = [token for ask in build_asks(load) for token in ask.body["prompt"]]
    assert set(ids) == set(range(97))
    assert build_asks(load) == build_asks(load)


def test_prompts_from_a_file_are_repeated(tmp_path):
    path = tmp_path / "prompts"
    path.write_text('one two\n\n{"prompt": "three\\ud83d", "max_tokens": 4}\n{"prompt": [1, 2, 3]}\n', encoding="utf-8")
    asks = build_asks(LoadTest(prompts=path, num_prompts=5))
    assert [ask.body.get("prompt") for ask in asks] == ["one two", "three\ud83d", [1, 2, 3], "one two", "three\ud83d"]
    assert [ask.length for ask in asks] == [2, 1, 3, 2, 1]
    with Server(answer) as server:
        outcome = run(server, prompts=path, num_prompts=3, concurrency=1, new=11)
    assert [body["max_tokens"] for body in server.bodies] == [11, 4, 11]
    assert all(record.ok for record in outcome.records)  # a lone surrogate is a bad prompt, and travels


def test_conversations_from_a_file(tmp_path):
    path = tmp_path / "prompts"
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why"}]
    path.write_text(json.dumps({"messages": conversation}) + "\nand text\r\n")
    first, second = build_asks(LoadTest(prompts=path, num_prompts=2, chat=True))
    assert first.body["messages"] == conversation
    assert second.body["messages"] == [{"role": "user", "content": "and text"}]


# ---- when it is sent


def test_the_same_seed_gives_the_same_times():
    load = LoadTest(rate=4.0, num_prompts=50, seed=3)
    assert arrivals_s(load) == arrivals_s(load)
    assert arrivals_s(load) != arrivals_s(LoadTest(rate=4.0, num_prompts=50, seed=4))


@pytest.mark.parametrize("burstiness", [0.01, 0.5, 1.0, 8.0, math.inf])
def test_times_rise_and_keep_the_rate(burstiness):
    times_s = arrivals_s(LoadTest(rate=4.0, num_prompts=50, burstiness=burstiness))
    assert times_s == sorted(times_s)
    assert times_s[-1] == pytest.approx(50 / 4)


def test_burstiness_is_the_shape_of_the_gaps():
    def variation(burstiness):
        gaps = np.diff(arrivals_s(LoadTest(rate=1.0, num_prompts=4000, burstiness=burstiness)))
        return gaps.std() / gaps.mean()

    # Of a gamma distribution it is 1/sqrt(shape). 4,000 gaps give it within 8 %: three deviations of the widest.
    assert variation(1.0) == pytest.approx(1, rel=0.08)
    assert variation(0.25) == pytest.approx(2, rel=0.08)
    assert variation(4.0) == pytest.approx(0.5, rel=0.08)
    assert variation(math.inf) == pytest.approx(0, abs=1e-6)


def test_without_a_rate_all_are_due_at_once():
    assert arrivals_s(LoadTest(num_prompts=3)) == [0, 0, 0]


def together(num):
    """A script that answers only when `num` requests are there."""
    barrier = threading.Barrier(num, timeout=PATIENCE_S)

    def script(handler):
        barrier.wait()
        answer(handler)

    return script


def test_a_closed_loop_keeps_just_so_many_in_flight():
    with Server(together(3)) as server:
        outcome = run(server, concurrency=3, num_prompts=21)
    assert all(record.ok for record in outcome.records)
    assert server.max_in_flight == outcome.max_in_flight == 3
    assert len(server.bodies) == 21


def test_an_open_loop_does_not_wait_for_answers():
    with Server(together(12)) as server:
        outcome = run(server, rate=2000, num_prompts=12)
    assert len(server.bodies) == 12
    assert all(record.ok for record in outcome.records)
    due_s = [record.due_s for record in outcome.records]
    assert due_s == arrivals_s(LoadTest(rate=2000, num_prompts=12))
    assert all(record.sent_s >= record.due_s for record in outcome.records)


def test_both_loops_together():
    with Server(together(2)) as server:
        outcome = run(server, rate=5000, concurrency=2, num_prompts=10)
    assert server.max_in_flight == 2
    facts = figures(outcome, {}, open_loop=True, detailed=False)
    assert facts["completed"] == 10
    assert facts["p99_client_queue_time_ms"] >= facts["p50_client_queue_time_ms"] > 0


def test_a_burst_larger_than_any_pool():
    with Server(answer) as server:
        outcome = run(server, num_prompts=150, prompt=2)
    assert sum(record.ok for record in outcome.records) == 150


# ---- what comes back


@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        (refuse, "HTTP 429", "the queue� is full"),
        (drop, "connection dropped", "incomplete"),
        (garbage, "not JSON", "{oops"),
        (error_event, "error event", "out of blocks"),
        (silence, "no content", ""),
        (cut_short, "ended early", "finish_reason"),
    ],
)
def test_what_fails_is_counted_and_the_run_goes_on(script, reason, detail):
    with Server(lambda handler: script(handler) if handler.number == 2 else answer(handler)) as server:
        outcome = run(server, num_prompts=4, concurrency=1, time_limit=PATIENCE_S)
    assert [record.failure for record in outcome.records] == ["", reason, "", ""]
    facts = figures(outcome, {}, open_loop=False, detailed=True)
    assert (facts["completed"], facts["failed"]) == (3, 1)
    assert facts["error_counts"] == {reason: 1}
    assert detail in facts["error_examples"][reason]
    assert [bool(error) for error in facts["errors"]] == [False, True, False, False]
    assert facts["output_lens"] == [6, 0, 6, 6]
    assert facts["total_output_tokens"] == 18


def test_what_hangs_ends_at_the_limit_and_the_run_goes_on():
    with Server(hang) as server:
        load = LoadTest(url=server.url, num_prompts=2, concurrency=1, time_limit=0.1)
        outcome = send(load, "m", build_asks(load))  # find_model would have to be answered within the limit too
    assert [record.error for record in outcome.records] == ["time limit: not done after 0.1 s"] * 2


def test_without_usage_chunks_are_counted_and_that_is_said():
    with Server(lambda handler: answer(handler, usages=False)) as server:
        outcome = run(server, num_prompts=2, prompt=11)
    facts = figures(outcome, {}, open_loop=False, detailed=False)
    assert (facts["total_input_tokens"], facts["total_output_tokens"]) == (22, 6)
    assert facts["token_counts_from"] == "chunks"
    assert len(facts["notes"]) >= 2
    assert "2 answers came without usage" in facts["notes"][0]


def test_prompts_that_the_server_knew_are_said():
    """So that nobody takes a second run with the same seed for a faster server."""
    first = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    for details, said in ((first, 1), (first | {"prompt_tokens_details": None}, 0)):
        record = Record()
        stream = AnswerStream(record)
        stream.feed(encode(piece("a", "stop"), {"choices": [], "usage": details}) + DONE, 1.0)
        facts = figures(Outcome([record, Record(input_tokens=6)], 2, 1.0), {}, open_loop=False, detailed=False)
        assert facts["total_cached_tokens"] == 8 * said
        assert [note.startswith("50 % of the prompt tokens were") for note in facts["notes"] if "cache" in note] == [
            True
        ] * said


def test_without_done_an_answer_with_a_finish_reason_is_whole():
    with Server(lambda handler: answer(handler, done=False)) as server:
        outcome = run(server, num_prompts=2)
    facts = figures(outcome, {}, open_loop=False, detailed=False)
    assert (facts["completed"], facts["token_counts_from"]) == (2, "usage")
    assert any("[DONE]" in note for note in facts["notes"])


def test_a_connection_that_stays_open_after_done_does_not_hold_the_run(monkeypatch):
    monkeypatch.setattr(load_module, "_GOODBYE_S", 0.01)
    with Server(linger) as server:
        outcome = run(server, num_prompts=2, time_limit=PATIENCE_S)
    assert [record.error for record in outcome.records] == ["", ""]


def test_the_clock_is_the_one_given():
    with Server(answer) as server:
        load = LoadTest(url=server.url, num_prompts=3)
        outcome = send(load, "m", build_asks(load), clock=lambda: 5.0)
    facts = figures(outcome, {"ttft": 0}, open_loop=False, detailed=True)
    assert facts["duration"] == facts["output_throughput"] == facts["p99_e2el_ms"] == 0
    assert facts["itls"] == [[0, 0]] * 3


def test_figures_agree_with_each_other():
    with Server(answer) as server:
        outcome = run(server, num_prompts=8, concurrency=4)
    facts = figures(outcome, {"e2el": 1e9}, open_loop=False, detailed=True)
    for ttft, itls, e2el in zip(facts["ttfts"], facts["itls"], facts["latencies"]):
        assert ttft + sum(itls) == pytest.approx(e2el)
        assert 0 < ttft <= e2el <= facts["duration"]
    assert facts["output_throughput"] * facts["duration"] == pytest.approx(facts["total_output_tokens"]) == 48
    assert facts["total_token_throughput"] * facts["duration"] == pytest.approx(48 + 8 * 7)
    assert facts["request_throughput"] == facts["request_goodput"]


# ---- the stream


def read(*blocks):
    """The record after blocks that come a second apart."""
    record = Record()
    stream = AnswerStream(record)
    for now_s, block in enumerate(blocks):
        stream.feed(block, now_s)
    stream.end()
    return record


DONE = b"data: [DONE]\n\n"


def encode(*documents):
    return b"".join(b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n" for document in documents)


def test_events_may_be_split_anywhere():
    whole = b": hello\n\nid: 3\n" + encode(piece("é\u2028x"), piece("", "stop"), usage(1, 5)) + DONE
    for text in (whole, whole.replace(b"\n", b"\r\n")):
        record = read(*(text[index : index + 1] for index in range(len(text))))
        assert record.texts == ["é\u2028x"]
        assert record.output_tokens == 5
        assert read(text).texts == record.texts


def test_chunks_without_text_are_no_tokens():
    record = read(encode(piece("")), encode(piece("a")), encode(piece("", "stop")), DONE)
    assert record.chunks_s == [1]


def test_what_comes_after_done_is_not_read():
    assert read(encode(piece("a")), DONE + b"data: {oops\n\n").texts == ["a"]


@pytest.mark.parametrize("data", [b"[1]", b"7", b"null", b"\xff", b"[" * 100_000])
def test_data_that_is_no_object_fails(data):
    with pytest.raises(Failure, match="not JSON") as failed:
        read(b"data: " + data + b"\n\n")
    assert len(failed.value.detail) <= 200


@pytest.mark.parametrize(
    "event",
    [{}, {"choices": 3}, {"choices": ["x"]}, {"choices": [{"delta": "x"}]}, {"choices": [{"text": 5}]}, {"usage": [1]}],
)
def test_events_of_another_shape_are_passed_over(event):
    assert read(encode(event, piece("a", "stop"))).texts == ["a"]


# ---- arithmetic


def record(sent_s, *chunks_s, tokens=None, failure="", due_s=0.0):
    return Record(
        due_s=due_s,
        sent_s=sent_s,
        chunks_s=list(chunks_s),
        texts=["x"] * len(chunks_s),
        input_tokens=10,
        input_reported=True,
        reported_tokens=tokens,
        failure=failure,
    )


SCRIPT = [
    record(0.0, 0.5, 0.6, 0.8, tokens=4),  # ttft 0.5, e2el 0.8, tpot 0.1
    record(1.0, 1.1, tokens=1, due_s=0.75),  # ttft and e2el 0.1, no tpot
    record(1.0, 1.2, failure="time limit"),
    record(2.0, 2.3, 2.7, tokens=3),  # ttft 0.3, e2el 0.7, tpot 0.2
]


def test_figures_of_scripted_times():
    facts = figures(Outcome(SCRIPT, 6, 4.0, 2, 0.05), {"ttft": 400, "tpot": 150}, open_loop=True, detailed=True)
    assert (facts["completed"], facts["failed"], facts["unfinished"]) == (3, 1, 2)
    assert (facts["total_input_tokens"], facts["total_output_tokens"]) == (30, 8)
    assert facts["request_throughput"] == 3 / 4
    assert facts["request_goodput"] == 1 / 4  # the first is late, the last is slow, the second has one token
    assert facts["output_throughput"] == 2
    assert facts["total_token_throughput"] == 38 / 4
    assert facts["max_client_lag_ms"] == 50
    expected = {
        "ttft": [500, 100, 300],
        "tpot": [100, 200],
        "itl": [100, 200, 400],
        "e2el": [800, 100, 700],
        "client_queue_time": [0, 250, 2000],
    }
    for name, values in expected.items():
        assert facts[f"mean_{name}_ms"] == pytest.approx(np.mean(values))
        assert facts[f"median_{name}_ms"] == facts[f"p50_{name}_ms"] == pytest.approx(np.median(values))
        assert facts[f"std_{name}_ms"] == pytest.approx(np.std(values))
        for percent in (90, 95, 99):
            assert facts[f"p{percent}_{name}_ms"] == pytest.approx(np.percentile(values, percent))
    assert facts["itls"][0] == pytest.approx([0.1, 0.2])
    assert facts["errors"] == ["", "", "time limit", ""]


@pytest.mark.parametrize(
    ("bounds_ms", "good"),
    [
        ({"e2el": 800.0001}, 3),
        ({"e2el": 750}, 2),
        ({"ttft": 0}, 0),
        ({"tpot": 0}, 1),
        ({"ttft": 1000, "tpot": 1000, "e2el": 99}, 0),
    ],
)
def test_goodput_needs_every_bound(bounds_ms, good):
    assert figures(Outcome(SCRIPT, 4, 1.0), bounds_ms, open_loop=False, detailed=False)["request_goodput"] == good


def test_of_nothing_nothing_is_known():
    facts = figures(Outcome([record(0.0, failure="HTTP 503")], 1, 0.5), {}, open_loop=True, detailed=False)
    assert facts["completed"] == facts["output_throughput"] == 0
    assert facts["request_goodput"] is facts["mean_ttft_ms"] is facts["p99_itl_ms"] is None
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Outcome([], 3, 1.0, interrupted=True), "interrupted: 3 of 3"),
        (Outcome([record(0.9, 1.0, tokens=1)], 1, 1.0), "0.90 s after it was due"),
        (Outcome([], 0, 1.0, lag_s=0.25), "fell behind by up to 0.25 s"),
    ],
)
def test_what_a_reader_must_know_is_noted(outcome, word):
    (note,) = figures(outcome, {}, open_loop=True, detailed=False)["notes"]
    assert word in note


# ---- the command


@pytest.fixture
def bench(tm, monkeypatch):
    """Runs `tokenmill bench load`; gives exit code, stdout and stderr."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return partial(tm, "bench", "load")


def test_json_has_the_keys_of_vllm(bench, tmp_path):
    path = tmp_path / "runs.jsonl"
    options = ["--num-prompts", 3, "--rate", 1000, "--goodput", "ttft:60000", "--detailed", "--output", path, "--json"]
    with Server(answer) as server:
        for _ in range(2):
            code, out, _ = bench("--url", server.url, *options)
            assert code == 0
    facts = json.loads(out.splitlines()[-1])
    latencies = [
        f"{statistic}_{metric}_ms"
        for statistic in "mean median std p50 p90 p95 p99".split()
        for metric in "ttft tpot itl e2el client_queue_time e2el_including_client_queue".split()
    ]
    assert facts.keys() >= {*VLLM_KEYS, *latencies, *DETAILS}
    assert (facts["model_id"], facts["backend"], facts["completed"]) == ("first", "openai", 3)
    assert all(facts[name] is not None for name in latencies)
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1]) == facts


@pytest.mark.slow
def test_a_run_for_each_concurrency_with_prompts_of_its_own(bench, tm, tmp_path):
    path = tmp_path / "load.jsonl"
    with Server(answer) as server:
        code, out, _ = bench("--url", server.url, "--num-prompts", 4, "--concurrency", "1,2,4", "--output", path)
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    assert code == 0 and [run["max_concurrency"] for run in runs] == [1, 2, 4]
    assert len({body["prompt"] for body in server.bodies}) == 12
    table = out.partition("By requests in flight")[2].splitlines()
    assert [line.split()[0] for line in table if line.split() and line.split()[0].isdigit()] == ["1", "2", "4"]


def test_the_best_second():
    facts = figures(Outcome(SCRIPT, 4, 1.0), {}, open_loop=False, detailed=False)
    assert 0 < facts["max_output_tokens_per_s"] <= facts["total_output_tokens"]


def test_a_document_that_the_disk_does_not_take_is_printed(bench, monkeypatch):
    """The disk fills during the run: the check before it has found nothing."""
    monkeypatch.setattr(files, "check_appendable", lambda path, setting: None)
    with Server(answer) as server:
        code, out, err = bench("--url", server.url, "--num-prompts", 3, "--output", "/dev/full")
    assert code == 2
    assert json.loads(out)["completed"] == 3
    assert "error: /dev/full cannot be written (No space left on device): the document is on stdout" in err


def test_a_table_for_people(bench):
    with Server(lambda handler: refuse(handler) if handler.number == 3 else answer(handler, usages=False)) as server:
        code, out, err = bench("--url", server.url, "--num-prompts", 4, "--concurrency", 1, "--model", "mine")
    assert code == 0
    assert server.bodies[0]["model"] == "mine"
    rows = [line.split() for line in out.splitlines() if line.strip()]
    assert ["completed", "3"] in rows
    assert ["output", "tokens", "(chunks", "counted)", "9"] in rows
    assert [row[0] for row in rows if len(row) == 7 and row[1][0].isdigit()] == ["ttft", "tpot", "itl", "e2el"]
    assert "HTTP 429: the queue� is full" in out
    assert "note: 3 answers came without usage" in err
    assert "unfinished" not in out


def test_quiet_and_json_say_nothing_else(bench):
    with Server(answer) as server:
        code, out, err = bench("--url", server.url, "--num-prompts", 2, "--json", "--quiet", "--rate", "inf")
    facts = json.loads(out)
    assert (code, err, facts["request_rate"], facts["request_goodput"]) == (0, "", "inf", None)
    assert facts.keys().isdisjoint(DETAILS)


def test_nothing_but_failures_is_exit_1(bench):
    with Server(refuse) as server:
        code, out, _ = bench("--url", server.url, "--num-prompts", 2)
    assert code == 1
    assert "HTTP 429" in out


def test_ctrl_c_reports_what_is_complete(bench):
    def script(handler):
        if handler.number < 3:
            return answer(handler)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return hang(handler)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Server(script) as server:
            code, out, err = bench("--url", server.url, "--num-prompts", 9, "--concurrency", 1, "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    facts = json.loads(out)
    assert code == 130
    assert (facts["completed"], facts["failed"], facts["unfinished"], facts["interrupted"]) == (2, 0, 7, True)
    assert "note: interrupted: 7 of 9" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate", "0"], ["--rate = 0.0", "above 0, or inf"]),
        (["--rate", "nan"], ["--rate = nan"]),
        (["--burstiness", "-1"], ["--burstiness = -1.0"]),
        (["--concurrency", "0"], ["--concurrency = '0'", "at least 1"]),
        (["--num-prompts", "0"], ["--num-prompts = 0"]),
        (["--prompt", "0"], ["--prompt = 0"]),
        (["--new", "0"], ["--new = 0"]),
        (["--time-limit", "inf"], ["--time-limit = inf"]),
        (["--goodput", "speed:3"], ["--goodput = 'speed:3'", "ttft, tpot, e2el"]),
        (["--goodput", "ttft:fast"], ["--goodput = 'ttft:fast'", "ttft:500"]),
        (["--goodput", "ttft:nan"], ["--goodput"]),
        (["--vocab-size", "9", "--chat"], ["--vocab-size", "--chat"]),
        (["--vocab-size", "9", "--prompts", "x"], ["--vocab-size", "--prompts"]),
        (["--prompts", "/nowhere/at/all"], ["--prompts = '/nowhere/at/all'", "No such file"]),
        (["--output", "/dev/null/at/all"], ["--output = '/dev/null/at/all'", "Not a directory"]),
        (["--output", "/dev/full"], ["--output = '/dev/full'", "No space left"]),
        (["--url", "127.0.0.1:8000"], ["--url = '127.0.0.1:8000'", "http://"]),
        (["--url", "http://h:99999"], ["--url"]),
        (["--detailed"], ["--detailed", "--json"]),
        (["--url", "http://127.0.0.1:1"], ["no server answers at http://127.0.0.1:1 (", "): start one, or give --url"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(bench, options, words):
    code, out, err = bench(*options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("options", "secret"), [(["--api-key", "se\nsame"], "same"), (["--url", "http://me:sesame@h"], "sesame")]
)
def test_secrets_are_not_repeated(bench, options, secret):
    code, out, err = bench(*options)
    assert code == 2
    assert secret not in out + err
    assert "sesame" not in repr(LoadTest(api_key="sesame"))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\n \n", "empty"),
        (b"\xff", "UTF-8"),
        (b"fine\n{oops\n", "line 2"),
        (b'{"text": "x"}', "not text"),
        (b'{"prompt": ""}', "line 1"),
        (b'{"prompt": [1, true]}', "line 1"),
        (b'{"prompt": "x", "max_tokens": 0}', "max_tokens"),
        (b'{"messages": []}', "line 1"),
        (b'{"a":' * 100_000, "line 1"),
    ],
)
def test_a_bad_file_of_prompts_is_refused_by_line(content, word, tmp_path):
    (tmp_path / "prompts").write_bytes(content)
    with pytest.raises(ConfigError, match="--prompts") as refused:
        build_asks(LoadTest(prompts=tmp_path / "prompts"))
    assert word in str(refused.value)


def test_ids_do_not_go_with_chat(tmp_path):
    (tmp_path / "prompts").write_text('{"prompt": [1, 2]}')
    with pytest.raises(ConfigError, match="line 1"):
        build_asks(LoadTest(prompts=tmp_path / "prompts", chat=True))


def test_a_server_that_lists_no_models_needs_a_name():
    with Server(answer) as server:
        server.models = b'{"data": []}'
        with pytest.raises(TokenmillError, match=r"lists no model \(HTTP \d+\): say with --model"):
            find_model(LoadTest(url=server.url))
        server.models_status = 404
        with pytest.raises(TokenmillError, match="HTTP 404"):
            find_model(LoadTest(url=server.url))
        assert find_model(LoadTest(url=server.url, model="mine")) == "mine"
        server.models_status = 401
        with pytest.raises(TokenmillError, match=r"wants another key \(HTTP \d+\): give it with --api-key"):
            find_model(LoadTest(url=server.url, model="mine", api_key="sesame"))


def test_a_proxy_in_the_environment_is_not_measured(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Server(answer) as server:
        assert run(server, num_prompts=1).records[0].ok
