"""Many clients, bad luck and bad intentions: the rows of the server's contract on load and faults, in short forms.

TOKENMILL_LOAD makes them as large as the contract has them: 2,000 requests at once, 500 clients that leave.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.empty import check_empty
from tests.parallel.processes import wait_until
from tests.serve.conftest import SETTINGS, served
from tests.serve.loop.test_driver import Gate
from tokenmill import load
from tokenmill.serve.facts import tokens

IS_LONG = bool(os.environ.get("TOKENMILL_LOAD"))
SCARCE = {"block_size": 4, "cache_tokens": 160, "max_sequences": 6, "max_step_tokens": 24}


async def post(port, body, reads=None):
    """Status, headers and body of one request on a connection of its own; leaves after `reads` bytes of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    received = b""
    try:
        while (reads is None or len(received) < reads) and (part := await reader.read(65536)):
            received += part
    finally:
        writer.close()
    head, _, rest = received.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, head.lower(), rest


def port_of(server):
    return int(server.url.rpartition(":")[2])


def resident_bytes(pid="self"):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def words(number, length=4):
    return " ".join(f"w{(number * 31 + place * 7) % 200}" for place in range(length))


def longest_gap_s(work):
    """The longest time that a thread which sleeps a millisecond at a time was kept from it while `work` was done.

    In processor time of this process: what other processes take meanwhile is not its fault.
    """
    gaps, is_over = [], threading.Event()

    def sleep():
        while not is_over.is_set():
            begun_s = time.process_time()
            time.sleep(0.001)
            gaps.append(time.process_time() - begun_s)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    try:
        work()
    finally:
        is_over.set()
        sleeper.join()
    return max(gaps)


# ---- row 1


@pytest.mark.slow
def test_a_flood_is_refused_beyond_the_queue(chat_model):
    count = 2000 if IS_LONG else 300

    async def flood(port):
        return await asyncio.gather(*(post(port, {"prompt": words(n), "max_tokens": 90}) for n in range(count)))

    with served(chat_model, max_queued=64) as server:
        before = resident_bytes()
        answers = asyncio.run(flood(port_of(server)))
        assert resident_bytes() - before < 200_000_000
        statuses = [status for status, _, _ in answers]
        assert set(statuses) == {200, 429} and statuses.count(200) >= 64 + SETTINGS["max_sequences"]
        for status, head, rest in answers:
            if status == 429:
                assert b"retry-after: " in head and json.loads(rest)["error"]["code"] == "queue_full"
        check_empty(server.driver.core)


# ---- row 4


@pytest.mark.slow
def test_every_answer_is_its_own_though_blocks_are_scarce(chat_model):
    prompts = [f"w{number} {words(number, 8)} w{number}" for number in range(32)]
    quiet = load(chat_model, **(SETTINGS | {"speculate": "off"}))
    wanted = [quiet.generate(prompt, max_new_tokens=24).text for prompt in prompts]

    async def ask(port):
        asked = ({"prompt": each, "max_tokens": 24, "temperature": 0, "stream": False} for each in prompts)
        return await asyncio.gather(*(post(port, body) for body in asked))

    with served(chat_model, SCARCE, stall_s=1000.0) as server:  # else a slow machine takes few prompts at once
        core = server.driver.core
        gate = Gate(core)  # all of them have come when the first step is made
        have_come = lambda: len(core.trackers) + core.thread._inbox.qsize() >= 32  # noqa: E731
        opener = threading.Thread(target=lambda: (wait_until(have_come), gate.opened.set()))
        opener.start()
        answers = asyncio.run(ask(port_of(server)))
        opener.join()
        assert server.driver.core.scheduler.num_preemptions > 0
        check_empty(server.driver.core)
    assert [json.loads(rest)["choices"][0]["text"] for _, _, rest in answers] == wanted


# ---- row 5


def test_clients_that_leave_at_any_point(chat_model):
    count, draw = 500 if IS_LONG else 80, random.Random(5)

    async def leave(port, number):
        stream = draw.random() < 0.6
        body = {"prompt": words(number, 12), "max_tokens": draw.randint(1, 60), "stream": stream, "temperature": 0}
        try:
            async with asyncio.timeout(draw.choice((0.002, 0.02, 0.2, 5))):
                await post(port, body, reads=draw.choice((0, 1, 300, 3000)))
        except TimeoutError:
            pass

    async def run(port):
        for start in range(0, count, 20):
            await asyncio.gather(*(leave(port, number) for number in range(start, start + 20)))

    with served(chat_model, SCARCE, max_queued=64) as server:
        asyncio.run(run(port_of(server)))
        ends_s = time.monotonic() + 60
        while (server.admission.num_open or server.driver.core.num_used_blocks) and time.monotonic() < ends_s:
            time.sleep(0.01)
        assert server.admission.num_open == 0
        check_empty(server.driver.core)
        body = {"prompt": words(3, 12), "max_tokens": 2, "temperature": 0}
        with httpx2.Client(base_url=server.url, timeout=60) as http:
            http.post("/v1/completions", json=body)
            again = http.post("/v1/completions", json=body).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 8


# ---- row 8

NULLS = "[" + ",".join(["null"] * 300_000) + "]"
BIASES = "{" + ",".join(f'"{number}":null' for number in range(200_000)) + "}"
WORDS = "w1 " * 500_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", f'{{"prompt": {NULLS}}}', 400),
        ("/v1/completions", f'{{"prompt": [{NULLS}]}}', 400),
        ("/v1/completions", f'{{"prompt": "w1", "stop": {NULLS}}}', 400),
        ("/v1/completions", f'{{"prompt": "w1", "logit_bias": {BIASES}}}', 400),
        ("/v1/completions", f'{{"prompt": "{WORDS}"}}', 400),
        ("/v1/chat/completions", f'{{"messages": {NULLS}}}', 400),
        ("/tokenize", f'{{"prompt": "{WORDS}"}}', 200),
        ("/detokenize", f'{{"tokens": {NULLS}}}', 400),
    ],
    ids="prompts ids stops biases prompt messages tokenize detokenize".split(),
)
def test_a_large_body_holds_nobody_up(http, path, body, status):
    http.post("/tokenize", json={"prompt": "w1"})  # so that everything is imported
    answers = []

    def ask():
        headers = {"content-type": "application/json"}
        answers.append(http.post(path, content=body, headers=headers).status_code)

    assert longest_gap_s(ask) < 0.5  # of any thread of this process, the server's among them
    assert answers == [status]


@pytest.mark.slow
def test_many_large_bodies_of_one_key_hold_no_other_key_up(chat_model, monkeypatch):
    quickly, has_answered = tokens._tokenized, threading.Event()

    def slowly(engine, body):
        assert body.prompt != "one" or has_answered.wait(120)
        return quickly(engine, body)

    monkeypatch.setattr(tokens, "_tokenized", slowly)
    with served(chat_model, keys=("one", "two")) as server:
        ends = []

        def ask(key):
            headers = {"Authorization": f"Bearer {key}"}
            response = httpx2.post(f"{server.url}/tokenize", json={"prompt": key}, headers=headers, timeout=120)
            ends.append((key, response.status_code))

        many = [threading.Thread(target=ask, args=("one",)) for _ in range(20)]
        for thread in many:
            thread.start()
        while len(server.server_state.tasks) < len(many):
            time.sleep(0.01)
        ask("two")
        has_answered.set()
        for thread in many:
            thread.join()
        assert ends == [("two", 200), *[("one", 200)] * 20]


# ---- row 12


def test_first_tokens_of_another_key_are_not_cached(chat_model):
    """A tenant could learn of another's prompts by which tokens are computed, so these are counted, not timed."""
    keys, prompt = ("one", "two"), words(1, 40)
    with served(chat_model, keys=keys) as server, httpx2.Client(base_url=server.url, timeout=60) as http:

        def cached(key):
            headers = {"Authorization": f"Bearer {key}"}
            body = {"prompt": prompt, "max_tokens": 1}
            answer = http.post("/v1/completions", json=body, headers=headers).json()
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [cached("one"), cached("one"), cached("two"), cached("two")] == [0, 32, 0, 32]


# ---- row 13


@pytest.mark.parametrize("field", ["chat_template", "chat_template_kwargs"])
def test_a_request_brings_no_template(http, field):
    value = {"chat_template": "{{ cycler.__init__ }}", "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}[field]
    body = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 2, field: value}
    said = http.post("/v1/chat/completions", json=body)
    assert said.status_code in (200, 400) and "cycler" not in json.dumps(said.json().get("choices", ""))


# ---- row 17


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_published(chat_model, tmp_path):
    prompts = [words(number, 40) for number in range(8)]
    quiet = load(chat_model, **(SETTINGS | {"speculate": "off"}))
    wanted = [quiet.generate(prompt, max_new_tokens=6).text for prompt in prompts]
    code = (
        "import sys; from tests.serve.conftest import SETTINGS; from tokenmill import load;"
        "from tokenmill.serve.start.options import Options; from tokenmill.serve.start.server import Server;"
        "from tokenmill.serve.http.address import Address, listen;"
        "taken = listen(Address(port=0)); print(taken.getsockname()[1], flush=True);"
        "settings = SETTINGS | {'prefix_dir': sys.argv[2]};"
        "Server(load(sys.argv[1], **settings), taken, Options('words')).serve_to_end()"
    )
    command = [sys.executable, "-c", code, chat_model, str(tmp_path)]

    async def begin(port, child):
        """Streams of all prompts; once each has begun, the server is killed."""
        begun = set()

        async def stream(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            data = json.dumps({"prompt": prompts[number], "max_tokens": 55, "stream": True, "temperature": 0}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
            try:
                while part := await reader.read(65536):
                    if b"data: {" in part:
                        begun.add(number)
                    if len(begun) == len(prompts):
                        child.kill()
            except ConnectionResetError:
                pass
            finally:
                writer.close()

        await asyncio.gather(*(stream(number) for number in range(len(prompts))))

    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        asyncio.run(begin(int(child.stdout.readline()), child))
        assert child.wait(120) == -signal.SIGKILL
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        url = f"http://127.0.0.1:{int(child.stdout.readline())}"
        with httpx2.Client(base_url=url, timeout=60) as http:
            for prompt, text in zip(prompts, wanted, strict=True):
                body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
                answer = http.post("/v1/completions", json=body).json()
                assert answer["choices"][0]["text"] == text
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
        child.terminate()
        assert child.wait(120) == 0
