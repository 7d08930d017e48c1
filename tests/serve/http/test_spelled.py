"""A refusal names a field as the client has spelled it: every other name of every field, of every protocol."""

import pytest

from tokenmill.serve.protocols import GENERATING
from tokenmill.serve.request.fields import SETTINGS, names_of

ASKED = [{"role": "user", "content": "w1 w2"}]
BODIES = {
    "/v1/completions": {"prompt": "w1"},
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/messages": {"messages": ASKED, "max_tokens": 4},
    "/v1/responses": {"input": "w1 w2"},
    "/completion": {"prompt": "w1"},
    "/infill": {"input_prefix": "w1", "input_suffix": "w2"},
    "/api/chat": {"model": "words", "messages": ASKED},
    "/api/generate": {"model": "words", "prompt": "w1"},
}
FORMS = {route.path: route.body for route in GENERATING}
ALIASES = [
    (path, alias)
    for path, form in FORMS.items()
    for name, field in form.model_fields.items()
    if len(names := names_of(name, field)) > 1
    for alias in names
]
WRONG = -(2**40)  # for any number that has another name


def said_of(http, path, body):
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return (error, None) if isinstance(error, str) else (error["message"], error.get("param"))


def test_every_route_is_tried():
    assert BODIES.keys() == FORMS.keys() and len(ALIASES) > 40


@pytest.mark.parametrize(("path", "alias"), ALIASES)
def test_a_value_of_a_wrong_type(http, path, alias):
    message, param = said_of(http, path, BODIES[path] | {alias: {"x": 1}})
    assert message.startswith(f"{alias}: ") and param in (alias, None)


OTHERS = ("stop", "return", "json", "guided")  # which are no numbers
NUMBERS = [
    (path, alias)
    for path, alias in ALIASES
    if not alias.startswith(OTHERS) and path != "/infill"  # whose first refusal is that this model fills nothing in
]


@pytest.mark.parametrize(("path", "alias"), NUMBERS)
def test_a_value_out_of_range(http, path, alias):
    message, param = said_of(http, path, BODIES[path] | {alias: WRONG})
    assert message.startswith(f"{alias} = ") and param in (alias, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, WRONG) for key in ("max_new_tokens", "repetition_penalty") for name in SETTINGS[key].http_aliases]
    + [("stop_words", [""]), ("temperature", -1), ("num_predict", 0)],
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_options_of_ollama(http, path, name, value):
    message, _ = said_of(http, path, BODIES[path] | {"options": {name: value}})
    assert message.startswith(f"options.{name}")


@pytest.mark.parametrize(
    ("path", "given", "words"),
    [
        (
            "/v1/completions",
            {"n_predict": 3, "min_new_tokens": 5},
            "min_new_tokens = 5 is not allowed: at most n_predict",
        ),
        ("/v1/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens = 0 is not allowed"),
        ("/completion", {"max_tokens": -5}, "max_tokens = -5 is not allowed"),
        ("/completion", {"n_cmpl": 0}, "n_cmpl = 0 is not allowed"),
        ("/completion", {"n_cmpl": 10_000}, "n_cmpl = 10000 is more than the"),
        ("/v1/responses", {"max_tokens": -5}, "max_tokens = -5 is not allowed"),
        ("/v1/responses", {"max_output_tokens": -5}, "max_output_tokens = -5 is not allowed"),
        ("/v1/messages", {"stop_sequences": [""]}, "stop_sequences = "),
        ("/v1/messages", {"stop": [""]}, "stop = "),
    ],
)
def testnames_of_in_the_words_of_a_refusal(http, path, given, words):
    assert said_of(http, path, BODIES[path] | given)[0].startswith(words)


def test_a_stream_that_is_refused_before_its_first_byte(http):
    message, param = said_of(http, "/completion", BODIES["/completion"] | {"repeat_penalty": -1, "stream": True})
    assert message.startswith("repeat_penalty = -1") and param == "repeat_penalty"
