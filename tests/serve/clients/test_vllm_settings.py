"""The server itself as vLLM's tests of its OpenAI server check it: each test here starts servers of its own.

They were read in vLLM's repository. Which of them a test here stands for, by file below tests/entrypoints, and the
commit at which that was read:

serve/instrumentator/test_basic.py (02a69ad271)
 - show_version, check_health: test_whether_it_lives
 - health_check_engine_dead_error: test_a_dead_engine
 - request_cancellation: test_many_clients_that_leave
 - server_load: test_the_load
 - request_wrong_content_type: test_bodies_that_do_not_say_that_they_are_json of tests/serve/http/test_guard.py
serve/instrumentator/test_metrics.py (030ea52eff): metrics_counts: test_figures_add_up; abort_metrics_reset:
 test_gauges_after_clients_have_left
serve/middleware/test_authentication_middleware.py (0c77dea1ec): test_every_route_wants_a_key,
 test_an_options_request_says_nothing
serve/middleware/test_x_request_id.py (ace72730fc): test_a_response_has_one_id
openai/completion/test_shutdown.py (2a48a98329): wait_timeout_completes_requests, request_rejection_during_shutdown,
 abort_timeout_fails_inflight_requests: test_a_server_that_shuts_down
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import pytest

from tests.empty import check_empty
from tests.serve.conftest import hold, served
from tests.serve.loop.test_driver import Gate
from tests.serve.loop.test_metrics import samples
from tests.serve.request.test_fields import post
from tokenmill.version import __version__

pytestmark = pytest.mark.clients

COMPLETION = "/v1/completions"
BODY = {"prompt": "w1 w2 w3", "max_tokens": 10, "temperature": 0}
KEY = {"Authorization": "Bearer one-key"}


def client_of(server, **settings):
    return httpx2.Client(base_url=server.url, timeout=120, trust_env=False, **settings)


def wait_until(holds, what):
    ends_s = time.monotonic() + 60  # a client that has read all closes without a reset: the next pings tell
    while not holds():
        assert time.monotonic() < ends_s, what
        time.sleep(0.01)


def test_whether_it_lives(http):
    assert http.get("/version").json() == {"version": __version__}
    assert http.get("/health").json() == {"status": "ok"}


def test_the_load(chat_model):
    with served(chat_model) as server, client_of(server) as http:
        gate = Gate(server.driver.core)
        assert http.get("/load").json() == {"server_load": 0}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(httpx2.post, f"{server.url}{COMPLETION}", json=BODY, timeout=60)
            assert gate.waits.wait(60) and http.get("/load").json() == {"server_load": 1}
            gate.opened.set()
            assert asked.result(60).status_code == 200
        wait_until(lambda: http.get("/load").json() == {"server_load": 0}, "the load does not go back to 0")


def test_a_dead_engine(chat_model):
    """Clients hear of it, and nothing of what is inside the server."""

    def fail():
        raise MemoryError("at 0x7f123 in /srv/engine.py")

    with served(chat_model) as server, client_of(server) as http:
        server.driver.core.loop.step = fail
        server.driver.on_failure = lambda: None  # else the server ends beside the second request
        response = http.post(COMPLETION, json=BODY)
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the engine has failed: MemoryError"
        assert http.get("/health").status_code == 503


def test_many_clients_that_leave(chat_model, quiet):
    with served(chat_model) as server, client_of(server) as http:
        step = server.driver.core.loop.step
        hold(server.driver)

        def leave(_):
            with pytest.raises(httpx2.TimeoutException):
                httpx2.post(f"{server.url}{COMPLETION}", json=BODY | {"max_tokens": 90, "min_tokens": 90}, timeout=1)

        with ThreadPoolExecutor(40) as pool:
            list(pool.map(leave, range(40)))
        server.driver.core.loop.step = step
        wait_until(lambda: not server.admission.num_open, "requests of clients that have left still run")
        assert post(http, prompt="w1")["choices"][0]["text"] == quiet.generate("w1", max_new_tokens=8).text
        check_empty(server.driver.core)


def test_figures_add_up(chat_model):
    count, num_prompt, num_new = 10, 9, 10
    with served(chat_model, metrics_prefix="vllm") as server, client_of(server) as http:
        for number in range(count):
            post(http, prompt=[number] * num_prompt, max_tokens=num_new)
        found = {name.removeprefix("vllm:"): value for name, value in samples(server.url).items()}
    times = """time_to_first_token e2e_request_latency request_queue_time request_inference_time request_prefill_time
        request_decode_time""".split()
    for name in (*(f"{each}_seconds" for each in times), "request_params_n", "request_params_max_tokens"):
        assert found[f"{name}_count"] == count
    assert found["request_params_max_tokens_sum"] == count * num_new
    assert found["inter_token_latency_seconds_count"] == count * (num_new - 1)
    for name, each in (("request_prompt_tokens", num_prompt), ("request_generation_tokens", num_new)):
        assert (found[f"{name}_sum"], found[f"{name}_count"]) == (count * each, count)
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (count * num_prompt, count * num_new)
    assert found["request_success_total length"] == count


def test_gauges_after_clients_have_left(chat_model):
    names = [f"tokenmill:{name}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")]
    with served(chat_model, {"max_sequences": 2}) as server, client_of(server) as http:

        def gauges():
            found = samples(server.url)
            return [found[name] for name in names]

        assert gauges() == [0, 0, 0]
        hold(server.driver)
        body = BODY | {"max_tokens": 90, "stream": True}
        with ThreadPoolExecutor(3) as pool:
            streams = [http.stream("POST", COMPLETION, json=body) for _ in range(3)]
            opened = [pool.submit(stream.__enter__) for stream in streams]
            wait_until(lambda: all(each > 0 for each in gauges()), "they do not show that requests run and wait")
            assert gauges()[:2] == [2, 1]
            for stream, response in zip(streams, opened, strict=True):
                response.result(20)
                stream.__exit__(None, None, None)
        wait_until(lambda: gauges() == [0, 0, 0], "gauges do not go back to 0")


def test_every_route_wants_a_key(chat_model, tmp_path):
    """Each that the document names, with and without a slash at the end; except for those that say that it lives."""
    with served(chat_model, keys=("one-key",), session_dir=tmp_path) as server, client_of(server) as http:
        paths = http.get("/openapi.json", headers=KEY).json()["paths"]
        assert len(paths) >= 13
        for path, operations in paths.items():
            for slash in ("", "/"):
                url, is_open = path.replace("{name}", "words") + slash, path in ("/health", "/ready", "/ping")
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "one-key"}):
                    for method in operations:
                        response = http.request(method, url, headers=headers, follow_redirects=True)
                        assert response.status_code == (200 if is_open else 401), (method, url)
        assert http.get("/v1/models/", headers=KEY).json()["data"][0]["id"] == "words"


def test_an_options_request_says_nothing(chat_model):
    with served(chat_model, keys=("one-key",)) as server, client_of(server) as http:
        preflight = {"Origin": "http://web.example", "Access-Control-Request-Method": "GET"}
        for headers in ({}, {"Access-Control-Request-Method": "GET"}, preflight):
            response = http.options("/metrics", headers=headers)
            assert response.status_code == 401 and "num_requests" not in response.text
            response = http.options("/metrics", headers=headers | KEY)
            assert response.status_code == 405 and "num_requests" not in response.text


@pytest.mark.parametrize("given", [None, "caller"])
def test_a_response_has_one_id(http, given):
    for path, status in (("/health", 200), ("/no/such/path", 404)):
        response = http.get(path, headers={"X-Request-Id": given} if given else {})
        (found,) = response.headers.get_list("x-request-id")
        assert response.status_code == status and (found == given if given else found.startswith("req-"))


@pytest.mark.parametrize("drain_s", [30.0, 0.0])
def test_a_server_that_shuts_down(chat_model, quiet, drain_s):
    """Running requests go on for as long as they may; new ones are refused."""
    with served(chat_model, drain_s=drain_s) as server, client_of(server) as http:
        gate = Gate(server.driver.core)
        with http.stream("POST", COMPLETION, json=BODY | {"max_tokens": 90, "stream": True}) as response:
            assert response.status_code == 200 and gate.waits.wait(60)
            server.drain()
            with suppress(httpx2.TransportError):  # when no connection is taken any more
                assert httpx2.post(f"{server.url}{COMPLETION}", json=BODY, timeout=60).status_code == 503
            if drain_s:
                gate.opened.set()
            events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        gate.opened.set()
    if drain_s:
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text == quiet.generate(BODY["prompt"], max_new_tokens=90).text
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    else:
        assert events[-1]["error"]["code"] == "shutting_down"
