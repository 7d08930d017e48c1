"""`context` of /api/generate: the next turn stands behind exactly the ids that were there."""

import json

import httpx2
import pytest

from tests.byte_model import save_byte_model
from tests.serve.conftest import MODEL, served
from tests.serve.ollama.test_ollama import asked, error, lines, whole
from tests.serve.scripted import save_scripted_model, scripted
from tests.text.tools.templates import TEMPLATES
from tokenmill import load
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prompt import conversation_prompt

GENERATE = asked("/api/generate")
SETTINGS = {"max_length": 2048, "max_sequences": 2, "cache_tokens": 8192}


def test_the_conversation_goes_on(http, quiet):
    first = whole(http, "/api/generate", GENERATE)
    ids = quiet.chat_prompt([{"role": "user", "content": "w3 w4"}])
    assert first.context == [*ids, *quiet.generate(ids, max_new_tokens=8).tokens]
    *_, last = lines(http, "/api/generate", GENERATE)
    assert last.context == first.context
    more = GENERATE | {"prompt": "w7", "context": first.context}
    second = whole(http, "/api/generate", more)
    ids = [*first.context, *quiet.encode("user w7 assistant")]
    done = quiet.generate(ids, max_new_tokens=8)
    assert (second.response, second.context) == (done.text, [*ids, *done.tokens])
    assert second.prompt_eval_count == len(ids)
    (told,) = whole(http, "/api/generate", more | {"system": "w1"}).warnings
    assert "system is not said again" in told
    assert whole(http, "/api/generate", GENERATE | {"context": []}).context == first.context


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A server whose turns end with a control token, and what it is asked."""
    path = save_scripted_model(tmp_path_factory.mktemp("scripted"))
    with (
        served(path, SETTINGS) as server,
        scripted(server.driver.core, lambda _: "Yes <b>.") as script,
        httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http,
    ):
        yield http, script


@pytest.mark.slow
def test_it_is_the_conversation_that_the_template_writes(spoken):
    http, script = spoken
    body = {"model": MODEL, "prompt": "Is it <|im_end|> so?", "system": "Be brief.", "stream": False}
    first = whole(http, "/api/generate", body)
    whole(http, "/api/generate", {"model": MODEL, "prompt": "And <|im_end|> now?", "context": first.context})
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": body["prompt"]},
        {"role": "assistant", "content": "Yes <b>."},
        {"role": "user", "content": "And <|im_end|> now?"},
    ]
    whole(http, "/api/chat", {"model": MODEL, "messages": turns})
    _, by_context, by_turns = script.sequences[-3:]
    ids = [each.tokens[: each.num_prompt_tokens] for each in (by_context, by_turns)]
    assert ids[0] == ids[1] and script.asked[-1] == script.asked[-2]
    assert by_context.num_cached_tokens >= len(first.context) // 32 * 32 > 0


def test_ids_that_are_none(http):
    for context in ([-1], [999], [2**62], ["w1"], "w1"):
        assert error(http, "/api/generate", GENERATE | {"context": context}).startswith("context")
    assert "maximum context length" in error(http, "/api/generate", GENERATE | {"context": [1] * 200})


# Their small templates here show an earlier answer otherwise than they open a new one; the context has what was open.
OPEN_OTHERWISE = ("functiongemma", "gemma4", "harmony")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {*OPEN_OTHERWISE}))
def test_the_turn_of_each_family(name, tmp_path):
    """Behind the ids of a question and its answer stands what its template writes of the whole conversation."""
    path = save_byte_model(tmp_path, context=4096)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATES[name]}))
    first, second = ({"role": "user", "content": text} for text in ("Is it?", "And now?"))
    with load(str(path), max_length=2048) as engine:
        before = [*engine.chat_prompt([first]), *engine.encode("Yes.", False)]
        _, found, _ = conversation_prompt(engine.core, Ask([second], after=before))
        assert found == engine.chat_prompt([first, {"role": "assistant", "content": "Yes."}, second])
