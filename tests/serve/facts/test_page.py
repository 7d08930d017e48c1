"""The page's files and headers, and what it is told of the cache. What it does in a browser: test_browser.py."""

import hashlib
import html
import re

import httpx2
import pytest

from tests.serve.conftest import served
from tokenmill.serve.facts.page import FILES, cache_view
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

AS_BROWSERS = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
VENDORED = {
    "marked.mjs": "c622dc6824a1c92c2d10ea9ede2fc872e46128afcc34b298e6ddee6f387ace8e",
    "purify.mjs": "f1f1ba66e2951e5ca14bc4e71e24cc503d35d49c68f9bcfa4fd97970cb71c76b",
}


def test_the_page_and_its_files_may_load_nothing_from_elsewhere(http):
    index = http.get("/", headers=AS_BROWSERS)
    assert index.status_code == 200 and index.headers["content-type"].startswith("text/html")
    paths = re.findall(r'(?:src|href)="([^"]+)"', index.text)
    assert len(paths) == 3
    for path in ("/", *paths, *(f"/page/vendor/{name}" for name in VENDORED)):
        said = http.get(path, headers=AS_BROWSERS)
        assert said.status_code == 200, path
        assert said.headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in said.headers["content-security-policy"]
        assert said.headers["x-content-type-options"] == "nosniff"
    assert "javascript" in http.get("/page/main.mjs").headers["content-type"]


def test_no_file_asks_another_host_or_has_script_in_html(http):
    for file in (*FILES.glob("*.*"), FILES.with_name("page.html")):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), file
    index = http.get("/", headers=AS_BROWSERS).text
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", index)


def test_numbers_of_any_step_can_be_set(http):
    """A browser counts a number that misses the step of its field as none."""
    index = http.get("/", headers=AS_BROWSERS).text
    assert {told.page.label for told in settings_of(SamplingParams).values() if told.page} <= set(
        re.findall(r"<label>(.+?) <input", index)
    )
    fields = re.findall(r"<input[^>]*type=\"number\"[^>]*>", index)
    assert len(fields) == 11 and all('step="any"' in field and "min=" not in field for field in fields)


def test_scripts_are_short_and_load_what_is_there():
    scripts = sorted(FILES.glob("*.mjs"))
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert text.startswith("// ") and text.count("\n") <= 300, script
        for path in re.findall(r'from "\./([^"]+)"', text):
            assert (FILES / path).is_file(), f"{script} loads {path}"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), script


@pytest.mark.parametrize("name", VENDORED)
def test_vendored_files_are_the_pinned_ones(name):
    assert hashlib.sha256((FILES / "vendor" / name).read_bytes()).hexdigest() == VENDORED[name]


@pytest.mark.parametrize(
    "path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page/nothing", "/page/", "/page//etc/passwd"]
)
def test_nothing_but_the_pages_files_is_served(http, path):
    assert http.get(path).status_code == 404
    assert set(http.get(path).json()["error"]) == {"message", "type", "param", "code"}


def test_the_page_wants_no_key_and_the_cache_does(chat_model):
    with served(chat_model, keys=("one",)) as server, httpx2.Client(base_url=server.url, timeout=60) as http:
        assert http.get("/", headers=AS_BROWSERS).status_code == http.get("/page/main.mjs").status_code == 200
        assert http.post("/").status_code in (401, 405)
        assert http.get("/v1/cache").status_code == 401


def test_the_page_is_served_under_names_of_this_machine_only(http):
    assert http.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_cache_says_the_state_of_each_block(http):
    prompt = [number % 90 for number in range(20)]  # two full blocks of 8, and a part of one
    http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
    seen = http.get("/v1/cache").json()
    assert seen["block_size"] == 8 and len(seen["blocks"]) == 4 * 96 / 8
    assert seen["blocks"].count("k") >= 2 and set(seen["blocks"]) <= set("fk")
    assert seen["running"] == seen["waiting"] == 0 and seen["texts"] == []


def test_cache_counts_sessions(chat_model, tmp_path):
    keys, body = ("one", "two"), {"prompt": "w1 w2 w3 w4 w5 w6 w7 w8 w9"}
    with (
        served(chat_model, keys=keys, session_dir=tmp_path) as server,
        httpx2.Client(base_url=server.url, timeout=60) as http,
    ):
        mine, theirs = ({"Authorization": f"Bearer {key}"} for key in keys)
        assert http.post("/v1/sessions/a/save", json=body, headers=mine).status_code == 200
        for headers in (mine, theirs):
            seen = http.get("/v1/cache", headers=headers).json()
            assert seen["texts"] == [] and seen["sessions"] == {"texts": 1, "blocks": 1}


@pytest.mark.parametrize(("own", "others"), [(b"one", 0), (b"two", 1)])
def test_cache_names_texts_of_the_same_key_only(quiet, own, others):
    prompt = f"w{70 + others} w2 w3 w4 w5 w6 w7 w8 w9"  # none that the cache has
    request = quiet.core.request(prompt, SamplingParams(max_new_tokens=4))
    request.sequences[0].client = b"one"
    quiet.core.submit(request)
    quiet.core.step()
    seen = cache_view(quiet.core.scheduler, {request.sequences[0].id: "cmpl-1"}, own)
    quiet.core.cancel(request)
    quiet.core.step()
    assert seen["others"] == {"texts": others, "blocks": 2 * others}
    text = {
        "id": "cmpl-1",
        "state": "running",
        "tokens": 10,
        "prompt_tokens": 9,
        "cached_tokens": 0,
        "blocks": 2,
        "shared": 0,
    }
    assert seen["texts"] == [text] * (not others)


def test_cache_names_the_answer_that_runs(http, client):
    with client.completions.create(model="words", prompt="w1", max_tokens=90, stream=True, temperature=0) as stream:
        first = next(iter(stream))
        seen = http.get("/v1/cache").json()
        for text in seen["texts"]:  # it may have ended by then, since nothing holds it
            assert text["id"] == first.id and text["state"] == "running" and text["blocks"] > 0


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_the_reference_names_every_route_and_field_and_loads_nothing_from_elsewhere(http, path):
    """Where FastAPI has its own, people look for one; that loads its viewer from another host."""
    said = http.get(path)
    assert said.status_code == 200 and said.headers["content-type"].startswith("text/html")
    assert said.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"https?://", said.text)
    document = http.get("/openapi.json").json()
    for route, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"<code>{method.upper()} {route}</code></h2><p>{html.escape(operation['description'])}" in said.text
    names = set(re.findall(r"<tr><th>([^<]+)</th>", said.text))
    for body in ("ChatBody", "MessagesBody", "ResponsesBody", "OllamaGenerateBody", "TokenizeBody", "BatchBody"):
        assert names >= document["components"]["schemas"][body]["properties"].keys()
    for linked in re.findall(r'(?:src|href)="([^"]+)"', said.text):
        assert http.get(linked).status_code == 200, linked


def test_the_reference_wants_no_key_and_does_not_name_the_model(chat_model):
    with served(chat_model, name="a-secret-model", keys=("one-key",)) as server:
        said = httpx2.get(f"{server.url}/docs", timeout=60)
    assert said.status_code == 200 and "a-secret-model" not in said.text
    assert "It wants a key: <code>Authorization: Bearer KEY</code>" in said.text
