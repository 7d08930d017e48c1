"""Texts that are kept by name: found again after a restart, by their own key only, whatever the name tries."""

import threading
from hashlib import blake2b

import httpx2
import pytest

from tests.parallel.processes import wait_until
from tests.serve.conftest import served

MESSAGES = [{"role": "user", "content": " ".join(f"w{number}" for number in range(40))}]
CHAT = {"messages": MESSAGES, "max_tokens": 5, "temperature": 0}


@pytest.fixture
def kept(chat_model, tmp_path):
    """Makes servers that keep their sessions in one directory."""

    def serve(**more):
        return served(chat_model, session_dir=tmp_path / "sessions", **more)

    return serve


def post(server, path, body=None, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx2.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)


def cached(server, key=None):
    answer = post(server, "/v1/chat/completions", CHAT, key).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["message"]["content"]


def test_a_restart_finds_the_rows(kept):
    with kept() as server:
        _, text = cached(server)
        saved = post(server, "/v1/sessions/tale/save", {"messages": MESSAGES}).json()
        assert saved["name"] == "tale" and saved["tokens"] == 42 and saved["bytes"] > 1000
    with kept() as server:
        restored = post(server, "/v1/sessions/tale/restore").json()
        assert restored == {"name": "tale", "tokens": 42, "cached_tokens": 41}
        assert cached(server) == (40, text)
        assert post(server, "/v1/sessions/tale/erase").json() == {"name": "tale", "erased": True}
        metrics = httpx2.get(f"{server.url}/metrics", timeout=60).text
        assert 'kv_cache_usage_perc{model_name="words"} 0.0\n' in metrics
        assert post(server, "/v1/sessions/tale/restore").status_code == 404
        assert post(server, "/v1/sessions/tale/erase").status_code == 404


def test_a_prompt_is_kept_too_and_a_name_is_used_again(kept):
    with kept() as server:
        assert post(server, "/v1/sessions/a/save", {"prompt": "w1 w2"}).json()["tokens"] == 2
        assert post(server, "/v1/sessions/a/save", {"prompt": "w1 w2 w3"}).json()["tokens"] == 3
        assert post(server, "/v1/sessions/a/restore").json()["tokens"] == 3


def test_each_key_has_its_own(kept):
    with kept(keys=("one", "two")) as server:
        assert post(server, "/v1/sessions/tale/save", {"messages": MESSAGES}, "one").status_code == 200
        assert post(server, "/v1/sessions/tale/restore", key="two").status_code == 404
        assert post(server, "/v1/sessions/tale/erase", key="two").status_code == 404
        assert cached(server, "two")[0] == 0
        assert cached(server, "one")[0] == 40


def test_names_are_plain(kept, tmp_path):
    with kept() as server:
        for name in ("..", ".hidden", "a%2fb", "%2e%2e%2fetc", "a b", "x" * 65, "a%00", "ä", "%ff"):
            for what in ("save", "restore", "erase"):
                response = post(server, f"/v1/sessions/{name}/{what}", {"prompt": "w1"})
                assert response.status_code in (400, 404), name
    assert not list(tmp_path.rglob("*.kv"))


def test_a_session_of_another_dtype_says_how_to_start_the_server(kept):
    with kept() as server:
        post(server, "/v1/sessions/tale/save", {"prompt": "w1 w2"})
    with kept(settings={"dtype": "bfloat16", "scheme": "q8"}) as server:
        response = post(server, "/v1/sessions/tale/restore")
        advice = "the text would not be the same; start the server with --dtype float32 and --scheme dense"
        assert response.status_code == 409 and response.json()["error"]["message"].endswith(advice)


def test_a_damaged_file_is_refused(kept, tmp_path):
    with kept() as server:
        post(server, "/v1/sessions/tale/save", {"prompt": "w1 w2"})
        (file,) = tmp_path.rglob("tale.kv")
        file.write_bytes(b"no session")
        response = post(server, "/v1/sessions/tale/restore")
        assert response.status_code == 409 and response.json()["error"]["code"] == "session_unusable"
        assert cached(server)[1]


def test_a_file_under_another_name_or_key_is_refused(kept, tmp_path):
    """Renamed, copied to another name, or into the folder of another key: never another text than the one asked for."""
    saved = []
    with kept(keys=("one", "two")) as server:
        for key, name, prompt in (("one", "a", "w1 w2"), ("one", "b", "w1 w2 w3"), ("two", "a", "w1")):
            post(server, f"/v1/sessions/{name}/save", {"prompt": prompt}, key)
            saved += set(tmp_path.rglob("*.kv")) - set(saved)
        first, second, other = saved
        whole = {path: path.read_bytes() for path in (first, second, other)}
        for source in (second, other):
            first.write_bytes(whole[source])
            response = post(server, "/v1/sessions/a/restore", key="one")
            assert response.status_code == 409 and "under another name or key" in response.json()["error"]["message"]
        first.write_bytes(whole[first])
        assert post(server, "/v1/sessions/a/restore", key="one").json()["tokens"] == 2


def test_what_is_no_session_is_neither_replaced_nor_deleted(kept, tmp_path):
    with kept() as server:
        post(server, "/v1/sessions/tale/save", {"prompt": "w1 w2"})
        (file,) = tmp_path.rglob("tale.kv")
        file.write_bytes(b"my own letters")
        for what, status in (("save", 507), ("erase", 409), ("restore", 409)):
            assert post(server, f"/v1/sessions/tale/{what}", {"prompt": "w1"}).status_code == status
        assert file.read_bytes() == b"my own letters"


@pytest.mark.parametrize("body", [{}, {"prompt": "w1", "messages": MESSAGES}, {"prompt": ""}, {"messages": []}])
def test_what_cannot_be_kept(kept, body):
    with kept() as server:
        assert post(server, "/v1/sessions/tale/save", body).status_code == 400


def test_a_server_that_keeps_none(server):
    assert post(server, "/v1/sessions/tale/save", {"prompt": "w1"}).json()["error"]["code"] == "no_sessions"


def test_a_directory_that_cannot_be_written(chat_model, tmp_path):
    (tmp_path / "file").write_text("no directory")
    with served(chat_model, session_dir=tmp_path / "file") as server:
        response = post(server, "/v1/sessions/tale/save", {"prompt": "w1"})
        assert response.status_code == 507 and response.json()["error"]["code"] == "not_saved"
        assert cached(server)[1]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["save", "restore"])
def test_streams_go_on_while_a_session_waits_for_a_place(kept, what):
    with kept(settings={"max_sequences": 1, "speculate": "off"}) as server:  # one token in each step
        post(server, "/v1/sessions/tale/save", {"messages": MESSAGES})
        step, told, may_step = server.driver.core.loop.step, [], threading.Semaphore(0)

        def read():
            body = {"prompt": "w2", "max_tokens": 60, "stream": True}
            with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
                told.extend("token" for line in stream.iter_lines() if line.startswith("data: {"))

        def ask():
            body = {"messages": MESSAGES} if what == "save" else None
            told.append(post(server, f"/v1/sessions/tale/{what}", body).status_code)

        server.driver.core.loop.step = lambda: may_step.acquire(timeout=120) and step()
        reading, asking = (threading.Thread(target=work) for work in (read, ask))
        reading.start()
        for number in range(1, 60):  # a step for each token that is read
            may_step.release()
            wait_until(lambda number=number: len(told) == number)
            if number == 1:  # the session is asked for in the midst of the stream
                asking.start()
                wait_until(lambda: server.admission.num_open == 2)
        assert told == ["token"] * 59
        may_step.release(1000)
        for thread in (reading, asking):
            thread.join(120)
        assert told[-1] == 200 or told[-2:] == [200, "token"]


def test_a_key_that_fills_the_server_keeps_no_sessions(kept):
    with kept(settings={"max_sequences": 1}, keys=("one", "two"), max_queued=1) as server:
        server.admission._open_of[blake2b(b"one", digest_size=16).digest()] = server.admission.max_open_of_one
        assert post(server, "/v1/sessions/tale/save", {"prompt": "w1"}, "one").status_code == 429
        assert post(server, "/v1/sessions/tale/save", {"prompt": "w1"}, "two").status_code == 200
