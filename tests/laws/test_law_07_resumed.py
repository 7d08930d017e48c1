"""Law 7, of requests: one that was broken off anywhere and is resumed from its tokens in another engine says the rest.

Text, tokens, log-probabilities and the end are those of the undisturbed request: characters and stop texts that the
border splits, penalties, limits, several continuations of which some have ended, and every proposer.
"""

import shutil

import pytest

from tests.integrity import check_scheduler
from tests.laws.test_law_11_streaming import BIAS, PROMPT, letters
from tests.marks import slow_but
from tests.text.test_tokenizer import write
from tests.tiny_models import save
from tokenmill import RequestError, SamplingParams, load

NEW = 16
SAMPLED = {"temperature": 0.8, "seed": 11}
ASKED = {
    "greedy": {"logit_bias": BIAS["loop"]},
    "sampled": SAMPLED,
    "split characters": {**SAMPLED, "logit_bias": BIAS["halves"]},
    "several": {**SAMPLED, "n": 3, "logprobs": 2},
    "some ended": {**SAMPLED, "n": 3, "stop_token_ids": tuple(range(0, 211, 12))},
    "penalties": {**SAMPLED, "repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "min tokens": {"temperature": 0.8, "seed": 1, "min_new_tokens": 7, "stop_token_ids": tuple(range(0, 211, 3))},
    "bad words": {**SAMPLED, "bad_words": ("ab", "a", "é"), "top_k": 40, "top_p": 0.9, "min_p": 0.01},
}
ENGINES = {
    "plain": {"speculate": "off"},
    "uncached": {"speculate": "off", "prefix_cache": False, "block_size": 1},
    "multi_step": {"speculate": "multi_step"},
    "suffix": {"speculate": "suffix"},
    "scarce": {"speculate": "adaptive", "block_size": 4, "cache_tokens": 64, "max_sequences": 2, "max_step_tokens": 7},
    "async": {"program": "eager", "async_scheduling": "on", "speculate": "off"},
}


@pytest.fixture(scope="module")
def path(models):
    path = models / "letters"
    shutil.copytree(save("llama", models), path)
    write(path, letters())
    return path


@pytest.fixture(scope="module")
def engine(path):
    """An engine by name: those that break off and those that go on are not the same ones."""
    made = {}

    def engine(name):
        if name not in made:
            made[name] = load(path, dtype="float32", threads=1, max_length=48, **ENGINES[name])
        return made[name]

    return engine


def pieces_of(engine, request):
    return list(engine.core.follow(request))


def joined(pieces, number):
    """All that pieces say of each continuation: text, tokens, log-probabilities, and why it ended, or None."""
    found = [["", [], [], None] for _ in range(number)]
    for piece in pieces:
        each = found[piece.index]
        each[0] += piece.text
        each[1] += piece.tokens
        each[2] += piece.logprobs or ()
        if piece.done is not None:
            each[3] = (piece.done.finish_reason, piece.done.stop_reason)
    return found


def check_cuts(whole, other, prompt, params, step=1):
    """Break off after each piece, or some, and resume in another engine."""
    pieces = pieces_of(whole, whole.core.request(prompt, params))
    wanted = joined(pieces, params.n)
    for cut in range(0, len(pieces) + 1, step):
        before = joined(pieces[:cut], params.n)
        request = other.core.request(prompt, params, emitted=[each[1] for each in before])
        after = joined(pieces_of(other, request), params.n)
        for (text, tokens, logprobs, end), first, rest, tracker in zip(
            wanted, before, after, request.trackers, strict=True
        ):
            assert (first[0] + rest[0], first[1] + rest[1]) == (text, tokens)
            assert rest[3] == end or (rest == ["", [], [], None] and first[3] == end)
            assert [entry.logprob for entry in first[2] + rest[2]] == pytest.approx(
                [entry.logprob for entry in logprobs], abs=1e-5
            )
            done = tracker.completion
            assert (done.text, list(done.tokens), (done.finish_reason, done.stop_reason)) == (text, tokens, end)
            assert done.num_prompt_tokens == len(prompt)
        check_scheduler(other.core.scheduler)
    return wanted


@pytest.mark.parametrize("asked", ASKED)
def test_cut_anywhere(asked, engine):
    params = SamplingParams(max_new_tokens=NEW, **ASKED[asked])
    wanted = check_cuts(engine("plain"), engine("uncached"), PROMPT, params)
    assert {end[0] for *_, end in wanted} == {"stop" if "stop_token_ids" in ASKED[asked] else "length"}
    assert asked != "some ended" or len({len(tokens) for _, tokens, *_ in wanted}) == 3


@pytest.mark.parametrize("name", slow_but(list(ENGINES)[2:], "scarce"))
def test_with_every_way_to_compute(name, engine):
    for asked, step in (("greedy", 1), ("several", 3), ("penalties", 4)):
        check_cuts(engine("plain"), engine(name), PROMPT, SamplingParams(max_new_tokens=NEW, **ASKED[asked]), step)
        check_cuts(engine(name), engine("plain"), PROMPT, SamplingParams(max_new_tokens=NEW, **ASKED[asked]), step)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("bias", BIAS)
def test_stop_texts_over_the_border(bias, include, engine):
    free = engine("plain").generate(PROMPT, max_new_tokens=NEW, logit_bias=BIAS[bias], **SAMPLED).text
    stops = [free[-3:], free[-4:-2] + "?", free[5:9]]
    num_stopped = 0
    for number in (1, 2, 3):
        params = SamplingParams(
            max_new_tokens=NEW, stop=stops[:number], include_stop=include, logit_bias=BIAS[bias], **SAMPLED
        )
        wanted = check_cuts(engine("plain"), engine("suffix"), PROMPT, params)
        num_stopped += wanted[0][3][0] == "stop"
    assert num_stopped


def test_what_cannot_have_come_is_refused(engine):
    core = engine("plain").core

    def refused(message, emitted, **settings):
        params = SamplingParams(**{"max_new_tokens": 4, **settings})
        with pytest.raises(RequestError, match=message):
            core.request(PROMPT, params, emitted=emitted)

    refused("2 continuations, but this request has 1", [[], []])
    refused("5 tokens of one continuation, which can have 4 at most", [[1] * 5])
    refused("211 is out of range", [[211]])
    refused("'no' is no value of `emitted`", ["no"])
    refused("token 2 of 3 ends the text", [[1, 5, 2]], stop_token_ids=[5])
    refused("token 1 of 2 ends the text", [[1, 2]], stop="a")
    refused("give it", [[1]], temperature=0.5)
    core.request(PROMPT, SamplingParams(temperature=0.5), emitted=[[]])


def test_nothing_is_computed_where_all_has_ended(engine):
    core = engine("plain").core
    request = core.request(PROMPT, SamplingParams(max_new_tokens=2), emitted=[[1, 2]])
    (done,) = core.finish([request])
    assert (done.text, done.tokens, done.finish_reason, done.timing.itl_s) == ("ab", (1, 2), "length", ())
    assert core.scheduler.idle and not core.trackers
