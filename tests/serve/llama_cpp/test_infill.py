"""Filling in over HTTP: llama.cpp's /infill as llama.vscode sends it, `suffix` in completions and Ollama's generate."""

import json

import httpx2
import pytest

from tests.byte_model import save_infill_model
from tests.empty import check_empty
from tests.serve.conftest import served
from tokenmill import load
from tokenmill.engine.outputs import Piece
from tokenmill.serve.llama_cpp.parse import LlamaOptions
from tokenmill.serve.llama_cpp.writer import LlamaText

PRE, SUF, MID, PAD, REPO, FILE = range(257, 263)
SETTINGS = {"max_length": 256, "max_sequences": 4, "block_size": 8, "dtype": "float32"}
BEFORE, AFTER = "def f(x):\n    ", "\n    return y\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save_infill_model(tmp_path_factory.mktemp("coder"))


@pytest.fixture(scope="module")
def server(path):
    with served(path, SETTINGS, name="coder") as server:
        yield server


@pytest.fixture(scope="module")
def wanted(path):
    """The text that a quiet engine writes."""
    with load(path, **SETTINGS, speculate="off") as quiet:
        prompt = [PRE, *BEFORE.encode(), SUF, *AFTER.encode(), MID]
        done = quiet.generate(prompt, max_new_tokens=12, stop_token_ids=[PAD, REPO, FILE])
        assert done.text
        return done


def vscode(**more):
    """The body of llama.vscode 0.0.63, src/llama-server.ts."""
    return {
        "id_slot": 0,
        "input_prefix": "def f(x):\n",
        "input_suffix": AFTER,
        "input_extra": [],
        "prompt": "    ",
        "n_predict": 12,
        "n_cmpl": 1,
        "top_k": 40,
        "top_p": 0.99,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 60_000,
    } | more


def test_as_llama_vscode_asks(server, http, wanted):
    found = http.post("/infill", json=vscode())
    assert found.status_code == 200, found.text
    found = found.json()
    assert found["content"] == wanted.text and found["stop"] is True and found["truncated"] is False
    assert found["tokens_predicted"] == len(wanted.tokens) == found["timings"]["predicted_n"]
    assert found["tokens_evaluated"] == len(BEFORE) + len(AFTER) + 3 and found["model"] == "coder"
    assert "warnings" not in found
    check_empty(server.driver.core)


def test_several_at_once_are_a_list(http, wanted):
    """As llama.cpp answers n_cmpl above 1."""
    found = http.post("/infill", json=vscode(n_cmpl=2, temperature=0.9, seed=3)).json()
    assert [each["index"] for each in found] == [0, 1] and found[0]["content"] != found[1]["content"]


def test_other_files_and_warming_up(http):
    """llama.vscode first asks for no token, so that the rows of the other files are there."""
    files = [{"text": "x = 1\n" * 3, "time": 1, "filename": "a.py"}, {"text": "y = 2\n" * 3, "filename": "b.py"}]
    warm = vscode(input_extra=files, n_predict=0, samplers=[], t_max_predict_ms=1)
    found = http.post("/infill", json=warm).json()
    assert found["content"] == "" and found["tokens_predicted"] == 0
    again = http.post("/infill", json=vscode(input_extra=files)).json()
    assert again["timings"]["cache_n"] >= found["tokens_evaluated"] - 8 and again["tokens_predicted"] > 0


def test_a_stream(http, wanted):
    with http.stream("POST", "/infill", json=vscode(stream=True)) as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: ")]
    assert "".join(each["content"] for each in events) == wanted.text
    assert [each["stop"] for each in events] == [False] * (len(events) - 1) + [True]


def test_completions_with_a_suffix(client, wanted):
    """As minuet and OpenAI's own client ask."""
    done = client.completions.create(model="coder", prompt=BEFORE, suffix=AFTER, max_tokens=12, temperature=0)
    assert done.choices[0].text == wanted.text
    pieces = client.completions.create(
        model="coder", prompt=BEFORE, suffix=AFTER, max_tokens=12, temperature=0, stream=True
    )
    assert "".join(each.choices[0].text for each in pieces) == wanted.text


def test_ollamas_generate_with_a_suffix(http, wanted):
    """As Continue asks a model for completions."""
    body = {"model": "coder", "prompt": BEFORE, "suffix": AFTER, "stream": False}
    found = http.post("/api/generate", json=body | {"options": {"num_predict": 12, "temperature": 0}}).json()
    assert found["response"] == wanted.text
    assert "insert" in http.post("/api/show", json={"model": "coder"}).json()["capabilities"]


def test_a_text_ends_with_the_marks_of_files(path, http):
    """Which a model for code writes where the file ends."""
    marks = {str(number): 100.0 for number in (FILE,)}
    found = http.post("/infill", json=vscode(logit_bias=marks)).json()
    assert (found["content"], found["tokens_predicted"]) == ("", 1) and found["stop_type"] == "word"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (vscode(input_extra=[{"filename": "a"}]), "input_extra[0]"),
        (vscode(input_extra=[{"text": 3}]), "input_extra[0]"),
        (vscode(lora=[{"id": 0, "scale": 0.5}]), "is not supported"),
        ({"input_suffix": "x"}, "input_prefix"),
        (vscode(model="other"), "not served here"),
        (vscode(n_indent=-1), "n_indent"),
        (vscode(n_predict=250), None),  # as many as fit
    ],
)
def test_wrong_bodies(body, said, http):
    found = http.post("/infill", json=body)
    assert found.status_code == (200 if said is None else 404 if "served" in said else 400), found.text
    assert said is None or said in found.json()["error"]["message"]


def test_what_is_too_long_is_cut_and_said(http):
    found = http.post("/infill", json=vscode(input_prefix="x" * 500)).json()
    assert found["truncated"] is True and found["tokens_evaluated"] == 256 - 12 and "cut" in found["warnings"][0]


@pytest.mark.parametrize("wanted", [-1, 200, 4096])
def test_a_long_file_leaves_a_quarter_for_new_tokens(wanted, http):
    """And so it keeps three quarters of the context, whatever is asked for."""
    body = vscode(input_prefix="x" * 500, n_predict=wanted, ignore_eos=True)
    found = http.post("/infill", json=body).json()
    assert (found["tokens_evaluated"], found["tokens_predicted"]) == (192, 64)
    short = http.post("/infill", json=body | {"input_prefix": "x" * 120, "input_suffix": "y", "input_extra": []}).json()
    assert short["truncated"] is False and short["tokens_evaluated"] > 120
    name = http.get("/v1/models").json()["data"][0]["id"]
    for route in ("/v1/completions", "/api/generate"):
        asked = {
            "model": name,
            "prompt": "x" * 500,
            "suffix": "y",
            "max_tokens": 4096,
            "options": {"num_predict": 4096},
        }
        asked.pop("options" if "v1" in route else "max_tokens")
        assert http.post(route, json=asked | {"stream": False}).status_code == 200


def test_a_model_without_marks_is_refused(chat_model):
    with served(chat_model) as server, httpx2.Client(base_url=server.url, trust_env=False) as http:
        for route, body in (
            ("/infill", vscode()),
            ("/v1/completions", {"prompt": "w1", "suffix": "w2"}),
            ("/api/generate", {"model": "words", "prompt": "w1", "suffix": "w2"}),
        ):
            found = http.post(route, json=body)
            assert found.status_code == 400 and "marks" in found.text
        assert "insert" not in http.post("/api/show", json={"model": "words"}).json()["capabilities"]


# The rules of llama.cpp's process_token (tools/server): a further line that begins with fewer blanks ends the text,
# without its letters; after the time is over the next line does.
INDENTED = [
    ("x = 1\n    y = 2\n    z", 4, "x = 1\n    y = 2\n    z"),
    ("x = 1\n    y = 2\nz = 3", 4, "x = 1\n    y = 2\n"),
    ("x = 1\n  y = 2\n    z", 4, "x = 1\n  "),
    ("x = 1\n\ty", 1, "x = 1\n\ty"),
    ("x\n\n    y", 4, "x\n"),
    ("x = 1\ny", 0, "x = 1\ny"),
]


@pytest.mark.parametrize("each", [1, 3, 100])
@pytest.mark.parametrize(("text", "indent", "shown"), INDENTED)
def test_lines_that_are_indented_too_little_end_it(text, indent, shown, each):
    middle, seen = LlamaText(LlamaOptions(indent)), ""
    for at in range(0, len(text), each):
        seen += middle.take(Piece(text[at : at + each], (1,)))
    assert seen == middle.text == shown and middle.is_over == (shown != text)


def test_a_line_after_the_time_ends_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tokenmill.serve.llama_cpp.writer.time.perf_counter", lambda: now[0])
    middle, seen = LlamaText(LlamaOptions(max_ms=100.0)), ""
    for piece, at in (("a\n", 0.0), ("b\n", 0.05), ("c", 0.2), ("d\ne", 0.3), ("f", 0.4)):
        now[0] = at
        seen += middle.take(Piece(piece, (1,)))
    assert seen == "a\nb\ncd" and middle.is_over and middle.stop == "limit"


def test_a_text_that_is_over_is_not_computed_to_its_end(server, http):
    """The request ends with it, and its blocks are free."""
    marks = {str(ord("\n")): 100.0}
    found = http.post("/infill", json=vscode(n_predict=200, n_indent=4, logit_bias=marks)).json()
    assert found["content"] == "\n" and found["tokens_predicted"] < 60 and found["stop_type"] == "limit"
    check_empty(server.driver.core)
