"""The Script of scripted.py: what it wants is what comes, with any proposer, and a refusal is told."""

import pytest

from tests.serve.scripted import call, in_turn, save_scripted_model, scripted
from tokenmill import load
from tokenmill.errors import RequestError

SETTINGS = {"max_length": 4096, "max_sequences": 2, "cache_tokens": 8192}
TOOL = {"type": "function", "function": {"name": "look"}}
ANSWERS = [call("look", path="ö/€.txt", deep=True), "It is <there>.\n\nAll of it."]
SAID = [{"role": "user", "content": "Where is it?"}]
CALLS = [{"type": "function", "function": {"name": "look", "arguments": {"path": "ö/€.txt", "deep": True}}}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_scripted_model(tmp_path_factory.mktemp("scripted"))


@pytest.mark.parametrize("speculate", ["off", "auto", "suffix"])
def test_answers_are_those_of_the_script(model, speculate):
    with load(model, **SETTINGS, speculate=speculate) as engine, scripted(engine.core, in_turn(ANSWERS)) as script:
        found = [{"role": "assistant", "tool_calls": CALLS}, {"role": "tool", "content": "a file"}]
        for temperature in (0, 1):
            for answer, messages in zip(ANSWERS, (SAID, [*SAID, *found]), strict=True):
                prompt = engine.chat_prompt(messages, tools=[TOOL])
                done = engine.generate(prompt, temperature=temperature, max_new_tokens=200)
                assert (done.text, done.finish_reason) == (answer, "eos")
        assert script.asked[1].startswith(script.asked[0] + ANSWERS[0])  # the template writes what the model wrote
        assert not script.departures


def test_a_token_that_may_not_come_is_told(model):
    with load(model, **SETTINGS) as engine, scripted(engine.core, lambda _: "one two") as script:
        first = engine.tokenizer.encode("one", add_special_tokens=False)[0]
        with pytest.raises(RequestError, match="not finite"):
            engine.chat(SAID, temperature=0, max_new_tokens=3, logit_bias={first: float("-inf")})
        assert [wanted for wanted, _ in script.departures] == [engine.tokenizer.decode([first])]
