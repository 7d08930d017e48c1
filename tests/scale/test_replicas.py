"""Replicas on Ray Serve, in processes of their own: killed, added, taken away and ended, under streams.

Texts are compared with those of an engine that computes nothing else.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.parallel.processes import is_there, wait_until
from tests.ports import unused_port
from tests.scale.slow_model import save_slow_model
from tests.serve.loop.test_everything import KEYS, SCARCE, SECONDS, try_everything
from tests.word_model import save_chat_model
from tokenmill import SamplingParams, load

pytestmark = pytest.mark.ray

WORKER = Path(__file__).parent / "ray_application.py"
KINDS = ({}, {"n": 2}, {"stop": ["7 w", "w44"]}, {"presence_penalty": 0.8, "top_p": 0.9}, {"logprobs": 1})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_slow_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def solo(model):
    """What an engine says that computes one request at a time."""
    engine = load(model, dtype="float32", threads=1, prefix_cache=False, speculate="off")

    def texts(body):
        named = {"max_tokens": "max_new_tokens"}
        settings = {named.get(name, name): value for name, value in body.items() if name not in ("prompt", "stream")}
        done = engine.generate(body["prompt"], SamplingParams(**settings))
        return [(each.text, each.finish_reason) for each in done.completions]

    return texts


class Running:
    """A child process that serves, and the processes below it."""

    def __init__(self, command, port, log):
        self.log = log.open("w")
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self.log, text=True)
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx2.Client(base_url=self.url, timeout=120, trust_env=False, verify=False)

    def wait(self, holds, what, limit_s=600):
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            assert self.child.poll() is None, Path(self.log.name).read_text()
            with suppress(httpx2.TransportError):
                if holds():
                    return
            time.sleep(0.1)
        raise AssertionError(f"{what} does not come about: {Path(self.log.name).read_text()}")

    def wait_ready(self):
        self.wait(lambda: self.http.get("/ready").status_code == 200, "that it is ready")

    def replicas(self):
        """The processes of the replicas that take requests."""
        return [pid for pid, name in below(self.child.pid) if "ServeReplica:tokenmill:Mill" in name]

    def load(self):
        """The number of requests that the replicas compute; None while there is no replica."""
        return self.http.get("/load").json().get("server_load")

    def names(self):
        """The replicas that answer."""
        page = self.http.get("/metrics").text
        return {line.split('replica="')[1].split('"')[0] for line in page.splitlines() if 'replica="' in line}


def below(pid):
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                with suppress(OSError):
                    yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from below(child)


@contextmanager
def running(command, port, log):
    one = Running(command, port, log)
    try:
        yield one
    finally:
        for pid, _ in [(one.child.pid, ""), *below(one.child.pid)] if one.child.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.child.wait()
        one.child.stdin.close()
        one.log.close()
        one.http.close()


@contextmanager
def two_replicas(model, folder, *more):
    """`tokenmill serve --replicas 2`, with further options."""
    port = unused_port()
    command = [sys.executable, "-m", "tokenmill", "serve", model, "--replicas", "2", "--threads", "1"]
    command += ["--port", str(port), "--dtype", "float32", "--served-model-name", "slow", "--max-sequences", "6"]
    with running([*command, *more], port, folder / "log") as one:
        one.wait_ready()
        yield one


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with two_replicas(model, folder, "--session-dir", str(folder)) as one:
        yield one


def body_of(number):
    seed = random.Random(number)
    prompt = " ".join(f"w{seed.randrange(200)}" for _ in range(seed.randint(3, 30)))
    asked = {"prompt": prompt, "max_tokens": seed.randint(20, 70), "temperature": 0.8, "seed": number}
    return asked | KINDS[number % len(KINDS)]


def read(url, body):
    """The texts of a stream and why they ended; its chunks have one id."""
    texts, ends, ids, is_over = {}, {}, set(), False
    with httpx2.stream(
        "POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=120, trust_env=False, verify=False
    ) as response:
        for line in response.iter_lines():
            is_over |= line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                ids.add((chunk["id"], chunk["created"], chunk["model"]))
                for choice in chunk["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                    ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    assert is_over and len(ids) == 1
    return [(texts[index], ends[index]) for index in sorted(texts)]


@contextmanager
def meanwhile(do):
    """Have a function called in a thread until it returns or this context ends, which its Event says."""
    stop = threading.Event()
    thread = threading.Thread(target=do, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


def streams(url, numbers, at_once=6):
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda number: read(url, body_of(number)), numbers))


def kill_one_of_two(server, seed):
    """Kill a replica if it is not the only one that takes requests; the name of the one that was killed, or None."""
    pids = server.replicas()
    if len(pids) < 2 or len(server.names()) < 2:
        return None
    killed = seed.choice(pids)
    with suppress(ProcessLookupError):
        os.kill(killed, signal.SIGKILL)
    return killed


def test_streams_outlive_their_replicas(server, solo):
    """As many streams as it takes for two replicas to be killed meanwhile, each while another one is up."""
    seed, killed, found = random.Random(5), [], []

    def kill(stop):
        while not stop.wait(seed.uniform(0.3, 2.5)):
            if (pid := kill_one_of_two(server, seed)) is not None:
                killed.append(pid)
                wait_until(lambda pid=pid: not is_there(pid))

    with meanwhile(kill):
        while len(killed) < 2:
            found += streams(server.url, range(len(found), len(found) + 24))
    assert found == [solo(body_of(number)) for number in range(len(found))]


def test_all_replicas_at_once(server, solo):
    server.wait(lambda: len(server.names()) == 2, "two replicas")
    body = body_of(0) | {"max_tokens": 200}
    with ThreadPoolExecutor(3) as pool:
        stream = pool.submit(read, server.url, body)
        whole = pool.submit(server.http.post, "/v1/completions", json=body)
        server.wait(lambda: server.load() == 2, "that both are computed")
        for pid in server.replicas():
            os.kill(pid, signal.SIGKILL)
        assert stream.result() == solo(body)
        answer = whole.result()
    assert [(each["text"], each["finish_reason"]) for each in answer.json()["choices"]] == solo(body)


def test_the_rest_of_the_server(server):
    server.wait(lambda: len(server.names()) == 2, "two replicas")
    http, turns, homes = server.http, [{"role": "user", "content": "w1 w2"}], set()
    for _ in range(3):
        answer = http.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 2})
        homes.add(answer.headers["x-replica"])
        turns += [answer.json()["choices"][0]["message"], {"role": "user", "content": "w3"}]
    assert len(homes) == 1
    assert http.get("/v1/models").json()["data"][0]["id"] == "slow"
    assert "<html" in http.get("/", headers={"Accept": "text/html"}).text
    assert http.post("/v1/completions", json={"prompt": "w1", "temperature": -1}).status_code == 400
    assert http.post("/v1/sessions/tale/save", json={"prompt": "w1 w2 w3"}).json()["tokens"] == 3
    assert http.post("/v1/sessions/tale/restore", json={}).status_code == 200
    with http.stream("POST", "/v1/completions", json=body_of(0) | {"max_tokens": 1500, "stream": True}) as response:
        next(response.iter_lines())
    server.wait(lambda: server.load() == 0, "that a client has left is heard of")
    assert 'replica="' in http.get("/metrics").text and http.get("/health").json() == {"status": "ok"}


def test_the_end_lets_streams_end_and_leaves_no_process(server, solo):
    body = body_of(0) | {"max_tokens": 150}
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(read, server.url, body)
        server.wait(lambda: server.load() == 1, "that it is computed")
        pids = [pid for pid, _ in below(server.child.pid)]
        server.child.send_signal(signal.SIGTERM)
        assert stream.result() == solo(body)
    assert server.child.wait(60) == 0
    wait_until(lambda: not any(map(is_there, pids)))


@pytest.mark.parametrize("drain_s", [600, 0], ids=["while it drains", "while the replicas end"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_waits_for_no_text(number, code, drain_s, model, tmp_path):
    """Not even for a step that hangs: the replicas' processes are stopped in the midst of a text."""
    with two_replicas(model, tmp_path, "--shutdown-timeout", str(drain_s)) as one:
        pids = [pid for pid, _ in below(one.child.pid)]
        with one.http.stream("POST", "/v1/completions", json=body_of(0) | {"max_tokens": 1500, "stream": True}) as text:
            lines = text.iter_lines()  # kept: the end of an iterator is the client's
            next(lines)
            stopped = one.replicas()
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            one.child.send_signal(number)
            if drain_s:
                wait_until(lambda: httpx2.get(f"{one.url}/ready", trust_env=False).status_code == 503)
            else:
                assert "shut down before this request had ended" in "".join(lines)
                wait_until(lambda: not is_open(one.url))
            one.child.send_signal(number)
            assert one.child.wait(60) == code
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not any(map(is_there, pids)))


def is_open(url):
    with suppress(httpx2.TransportError):
        return httpx2.get(f"{url}/ready", trust_env=False).status_code > 0
    return False


@pytest.mark.long
def test_a_cluster_grows_and_shrinks_under_streams(model, solo, tmp_path):
    """The application of a config file, behind Ray's own proxy: 1, 3 and 1 replicas."""
    port, seen = unused_port(), []
    with running([sys.executable, str(WORKER), model, str(port)], port, tmp_path / "log") as one:
        one.wait_ready()

        def change(stop):
            for number in (3, 1):
                one.child.stdin.write(f"{number}\n")
                one.child.stdin.flush()
                while not stop.wait(0.1) and len(one.names()) != number:
                    pass
                seen.append(len(one.names()))

        with meanwhile(change):
            found, first, ends_s = [], 0, time.monotonic() + 600
            while len(seen) < 2 and time.monotonic() < ends_s:  # until both have come about under streams
                found += streams(one.url, range(first, first + 12))
                first += 12
        assert seen == [3, 1]
        assert found == [solo(body_of(number)) for number in range(first)]
        one.child.stdin.close()
        assert one.child.wait(60) == 0


def test_everything_at_once(tmp_path):
    """Law 14 through Ray; TOKENMILL_LAW_14_SECONDS says how long. Every five seconds a replica is killed, but not while
    no other one is up: on a busy machine none might ever be.
    """
    chat_model, port = save_chat_model(tmp_path / "model"), unused_port()
    quiet = load(chat_model, dtype="float32", max_length=96, speculate="off", prefix_cache=False, threads=1)
    (tmp_path / "keys").write_text("\n".join(KEYS))
    folders = {"prefix-dir": "blocks", "suffix-dir": "texts", "session-dir": "sessions", "api-key-file": "keys"}
    options = {name.replace("_", "-"): value for name, value in SCARCE.items()}
    options |= {"dtype": "float32", "max-length": 96, "draft-model": "q8", "replicas": 2, "port": port}
    options |= {name: tmp_path / folder for name, folder in folders.items()}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    seed = random.Random(9)

    def kill(stop):
        while not stop.wait(5.0):
            kill_one_of_two(one, seed)

    with running([sys.executable, "-m", "tokenmill", "serve", chat_model, *given], port, tmp_path / "log") as one:
        one.wait_ready()
        with meanwhile(kill):
            try_everything(one.url, quiet, max(SECONDS, 8))


def test_arguments_that_are_none_are_refused(llama):
    code = (
        "import sys, json; from tokenmill.scale.replicas import Arguments; Arguments(**json.loads(sys.argv[1])).setup"
    )
    for given, message in (
        ({"engine": {"thread": 2}}, "engine.thread = 2 (set in args) is not allowed: its settings are"),
        ({"server": {"certificate": "x"}}, "server.certificate = 'x' (set in args) is not allowed"),
        ({"replica": 2}, "Extra inputs are not permitted"),
        ({"replicas": 0}, "greater than or equal to 1"),
    ):
        command = [sys.executable, "-c", code, json.dumps({"model": str(llama), **given})]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode and message in done.stderr
