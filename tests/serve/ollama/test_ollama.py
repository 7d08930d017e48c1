"""POST /api/chat and /api/generate, as Ollama's documents show them: texts are those of the engine."""

import json
import time

import httpx2
import pytest

from tests.serve.conftest import MODEL, hold, served, wire

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "w3 w4"}], "options": {"temperature": 0}}
ROUTES = {"/api/chat": CHAT, "/api/generate": {"model": MODEL, "prompt": "w3 w4", "options": {"temperature": 0}}}
SAID = {"/api/chat": {"message"}, "/api/generate": {"response", "thinking", "context"}}
EACH = {"model", "created_at", "done", "logprobs"}
LAST = {"done_reason", "total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count"}
LAST |= {"eval_duration", "warnings", "prompt_token_ids", "token_ids"}
ABSENT = {"warnings": [], "logprobs": [], "context": [], "thinking": "", "tool_calls": []}


class Told(dict):
    """An object of an answer, with its keys as attributes."""

    def __getattr__(self, name):
        return self.get(name, ABSENT.get(name))


def read(path, text):
    """An object of an answer, which has no other keys than Ollama's and our own."""
    told = json.loads(text, object_hook=Told)
    assert set(told) <= SAID[path] | EACH | LAST and {"model", "created_at", "done"} <= set(told), told
    return told


def asked(path, **options):
    """The body of a route, with more options."""
    return ROUTES[path] | {"options": {"temperature": 0, "num_predict": 8, **options}}


def lines(http, path, body):
    """The objects of a stream."""
    response = http.post(path, json=body)
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson", response.text
    return [read(path, line) for line in response.text.splitlines()]


def whole(http, path, body):
    response = http.post(path, json=body | {"stream": False})
    assert response.status_code == 200, response.text
    return read(path, response.content)


def text_of(answer):
    return answer.message.content if "message" in answer else answer.response


def error(http, path, body, status=400):
    response = http.post(path, json=body)
    assert response.status_code == status and list(response.json()) == ["error"], response.text
    return response.json()["error"]


@pytest.fixture
def often(monkeypatch):
    """A stream on which no text comes has an object without text soon."""
    monkeypatch.setattr("tokenmill.serve.loop.driver.SILENCE_S", 0.01)


@pytest.mark.parametrize("path", ROUTES)
def test_the_text_is_that_of_the_engine(path, http, quiet):
    wanted = quiet.chat(CHAT["messages"], max_new_tokens=8)
    *parts, last = lines(http, path, asked(path))
    done = whole(http, path, asked(path))
    assert "".join(map(text_of, parts)) == text_of(done) == wanted.text and not text_of(last)
    assert not any(part.done or part.done_reason or part.total_duration for part in parts)
    for each in (last, done):
        assert each.done and (each.done_reason, each.eval_count) == ("length", 8) and not each.warnings
        assert each.prompt_eval_count == wanted.num_prompt_tokens and each.model == MODEL
        pieces = (each.load_duration, each.prompt_eval_duration, each.eval_duration)
        assert min(pieces) > 0 and sum(pieces) <= each.total_duration


@pytest.mark.parametrize("path", ROUTES)
def test_log_probabilities(path, http):
    chat = asked("/api/chat") | {"max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    chat.pop("options")
    wanted = http.post("/v1/chat/completions", json=chat).json()["choices"][0]["logprobs"]["content"]
    body = asked(path) | {"logprobs": True, "top_logprobs": 2}
    for parts in (lines(http, path, body), [whole(http, path, body)]):
        assert [entry for part in parts for entry in part.logprobs] == wanted
    assert "logprobs" in error(http, path, asked(path) | {"top_logprobs": 2})


def test_a_raw_prompt_is_as_it_is(http, quiet):
    done = whole(http, "/api/generate", asked("/api/generate") | {"raw": True, "logprobs": True})
    assert done.response == quiet.generate("w3 w4", max_new_tokens=8).text and not done.context
    assert len(done.logprobs) == 8 and done.prompt_eval_count == 2
    for name, value in (("system", "w1"), ("template", "x"), ("context", [1])):
        body = asked("/api/generate") | {"raw": True, name: value}
        assert error(http, "/api/generate", body) == "raw mode does not support template, system, or context"
    as_many_as_fit = whole(http, "/api/generate", ROUTES["/api/generate"] | {"raw": True})
    assert as_many_as_fit.eval_count == 94


@pytest.mark.slow
def test_a_model_without_a_template_continues_plain_prompts(tmp_path):
    from tests.word_model import save_word_model

    with (
        served(str(save_word_model(tmp_path))) as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=120) as http,
    ):
        first = whole(http, "/api/generate", asked("/api/generate"))
        assert first.context[:2] == [3, 4] and len(first.context) == 10
        second = whole(http, "/api/generate", asked("/api/generate") | {"prompt": "w5", "context": first.context})
        assert second.context[:11] == [*first.context, 5]
        assert "chat template" in error(http, "/api/generate", asked("/api/generate") | {"system": "w1"})
        assert "does not support chat" in error(http, "/api/chat", CHAT)
        assert http.post("/api/show", json={"model": MODEL}).json()["capabilities"] == ["completion"]


def test_an_answer_that_was_begun_goes_on(http, quiet):
    body = asked("/api/chat")
    begun = [*body["messages"], {"role": "assistant", "content": "w7"}]
    tokens = quiet.chat_prompt(begun, add_generation_prompt=False, continue_final_message=True)
    assert whole(http, "/api/chat", body | {"messages": begun}).message.content.strip() == (
        quiet.generate(tokens, max_new_tokens=8).text.strip()
    )


def test_system_and_roles(http, quiet):
    wanted = quiet.chat([{"role": "system", "content": "w1"}, *CHAT["messages"]], max_new_tokens=8).text
    assert whole(http, "/api/generate", asked("/api/generate") | {"system": "w1"}).response == wanted
    told = [{"role": "System", "content": "w1"}, {"role": "USER", "content": "w3 w4", "images": None}]
    assert whole(http, "/api/chat", asked("/api/chat") | {"messages": told}).message.content == wanted


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload"), ("0s", "unload")])
def test_nothing_to_say_asks_whether_the_model_is_loaded(path, keep_alive, reason, http):
    for stream in (True, False):
        response = http.post(path, json={"model": MODEL, "keep_alive": keep_alive, "stream": stream})
        done = read(path, response.content)
        assert done.done and done.done_reason == reason and not text_of(done)
        assert bool(done.warnings) == (reason == "unload")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("keep_alive", ["10m", "-1", -1, "1h30m", "1.5h", 300, 2.5, "", "-1s"])
def test_how_long_a_model_is_kept_changes_nothing(path, keep_alive, http):
    assert not whole(http, path, asked(path, num_predict=1) | {"keep_alive": keep_alive}).warnings


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest", MODEL.upper()])
def test_names_have_tags(name, http):
    assert whole(http, "/api/chat", asked("/api/chat") | {"model": name}).model == name
    if name != MODEL.upper():
        body = {"model": name, "messages": CHAT["messages"], "max_tokens": 1}
        assert http.post("/v1/chat/completions", json=body).status_code == 200


REFUSED = [
    ({"model": "llama3"}, "model 'llama3' not found", 404),
    ({"model": f"{MODEL}:7b"}, "not found", 404),
    ({"model": ""}, "model", 400),
    ({"model": None}, "model", 400),
    ({"keep_alive": "soon"}, "keep_alive = 'soon' is not allowed", 400),
    ({"think": True}, f'"{MODEL}" does not support thinking', 400),
    ({"think": "low"}, f'"{MODEL}" does not support thinking', 400),
    ({"think": "hard"}, "think = 'hard' is not allowed", 400),
    ({"format": "yaml"}, "format", 400),
    ({"format": 5}, "format: a valid value is the text json, or a JSON schema", 400),
    ({"options": []}, "options", 400),
    ({"stream": "no"}, "stream", 400),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("more", "words", "status"), REFUSED, ids=str)
def test_refusals_are_one_text(path, more, words, status, http):
    assert words in error(http, path, ROUTES[path] | more, status)


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "w1 " * 100}]}, "maximum context length is 96"),
        ("/api/chat", {"messages": [{"role": "user", "content": "w1", "images": ["aa"]}]}, "reads text alone"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "w1"}]}, "messages[0].role = 'robot'"),
        ("/api/chat", {"messages": [{"role": "user", "content": ["w1"]}]}, "messages[0].content: a str is needed"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "w1"}]}, "no message before it"),
        ("/api/chat", {"tools": [{"type": "function"}]}, "tools[0].function"),
        ("/api/generate", {"images": ["aa"]}, "reads text alone"),
        ("/api/generate", {"suffix": "w1"}, f'"{MODEL}" does not support insert'),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "--chat-template FILE"),
        ("/api/generate", {"context": [1, 999]}, "context: "),
    ],
)
def test_what_is_not_served_is_refused(path, more, words, http):
    assert words in error(http, path, ROUTES[path] | more)


@pytest.mark.slow
def test_unknown_fields_are_named_or_refused(http, chat_model):
    body = asked("/api/chat", top_a=1) | {"shift": True, "truncate": False, "nonsense": 1}
    told = ["unknown field 'options.top_a' is ignored", "unknown field 'nonsense' is ignored"]
    assert sorted(whole(http, "/api/chat", body).warnings) == sorted(told)
    with (
        served(chat_model, is_strict=True) as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=120) as strict,
    ):
        assert "there is no field" in error(strict, "/api/chat", body)
        assert whole(strict, "/api/chat", asked("/api/chat")).done


def test_our_own_fields_count_too(http, quiet):
    body = asked("/api/chat", num_predict=None) | {"max_tokens": 3, "cache_salt": "a", "return_token_ids": True}
    done = whole(http, "/api/chat", body)
    assert done.eval_count == 3 and not done.warnings
    assert done.prompt_token_ids == quiet.chat_prompt(CHAT["messages"]) and len(done.token_ids) == 3
    (told,) = whole(http, "/api/chat", body | {"prompt_logprobs": 1}).warnings
    assert told == "unknown field 'prompt_logprobs' is ignored"


def test_programs_need_not_say_that_a_body_is_json(http):
    content = json.dumps(asked("/api/chat") | {"stream": False})
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d has it
    assert http.post("/api/chat", content=content, headers=form).status_code == 200
    assert http.post("/api/chat", content=content, headers={"Content-Type": ""}).status_code == 200
    for header in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert http.post("/api/chat", content=content, headers=form | header).status_code == 415


@pytest.mark.slow
def test_keys_are_wanted(chat_model):
    with (
        served(chat_model, keys=("one",)) as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=120) as http,
    ):
        assert "key" in error(http, "/api/chat", CHAT, 401)
        for path in ("/api/tags", "/api/ps", "/api/version"):
            assert http.get(path).status_code == 401
        assert http.post("/api/chat", json=CHAT, headers={"Authorization": "Bearer one"}).status_code == 200


@pytest.mark.slow
def test_a_full_server_and_one_that_ends(chat_model):
    with (
        served(chat_model, {"max_sequences": 1}, max_queued=0) as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=120) as http,
    ):
        with server.admission.slots(1):
            response = http.post("/api/chat", json=CHAT)
            assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        server.served.service.is_draining = True
        assert "shutting down" in error(http, "/api/chat", CHAT, 503)
        assert "shutting down" in error(http, "/api/generate", {"model": MODEL}, 503)


def test_a_client_that_leaves_is_forgotten(chat_model, often):
    with served(chat_model) as server:
        hold(server.driver)
        with httpx2.stream("POST", f"{server.url}/api/chat", json=CHAT, timeout=60) as response:
            next(response.iter_lines())
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.005)
        assert 'finished_reason="length"' not in server.driver.metrics.text().decode()


def test_a_stream_that_fails_ends_with_an_error(chat_model):
    with served(chat_model) as server:
        core, steps = server.driver.core, []
        step = core.loop.step

        def spoilt():
            steps.append(1)
            if len(steps) == 3:
                raise ZeroDivisionError
            step()

        core.loop.step = spoilt
        data = json.dumps(CHAT).encode()
        head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        *_, last = [line for line in wire(server.url, head.encode() + data).split(b"\r\n") if line.startswith(b"{")]
        assert json.loads(last) == {"error": "the engine has failed: ZeroDivisionError"}


def test_nothing_for_a_while_is_an_object_without_text(chat_model, often):
    with served(chat_model) as server:
        hold(server.driver)
        with httpx2.stream("POST", f"{server.url}/api/chat", json=CHAT, timeout=60) as response:
            found = response.iter_lines()
            empty = next(each for line in found if not (each := json.loads(line))["message"]["content"])
        assert not empty["done"] and set(empty) == {"model", "created_at", "message", "done"}


def test_a_stream_at_the_end_of_the_server_ends_with_an_error(chat_model, often):
    got = []
    with served(chat_model, drain_s=0.0) as server:
        hold(server.driver)
        with httpx2.stream("POST", f"{server.url}/api/chat", json=CHAT, timeout=60) as response:
            found = response.iter_lines()
            got.append(next(found))
            server.drain()
            got += found
    assert json.loads(got[-1]) == {"error": "the server has shut down before this request had ended"}
    assert not any(json.loads(line).get("done") for line in got)
