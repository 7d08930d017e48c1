"""The check of an agent's log against servers whose counts are known."""

from random import Random

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.prove.fake import running
from tokenmill.errors import TokenmillError
from tokenmill.prove.agent.check import AgentCheck, AgentSettings, common_length
from tokenmill.prove.agent.log import Recorded
from tokenmill.prove.agent.report import notes, rows

BLOCK = 4


def server(bodies):
    """It counts each word as a token and finds whole blocks of what it was sent; it tells no ids of /v1/messages."""
    seen, ids = set(), {}

    async def answer(request):
        body = await request.json()
        bodies.append(body)
        words = body["messages"].split()
        if "fail" in words:
            return JSONResponse({"error": {"message": "too long"}}, 400)
        tokens = [ids.setdefault(word, len(ids)) for word in words]
        ends = range(BLOCK, len(tokens), BLOCK)
        found = next((end for end in reversed(ends) if tuple(tokens[:end]) in seen), 0)
        seen.update(tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK))
        if request.url.path == "/v1/messages":
            usage = {"input_tokens": len(tokens) - found, "cache_read_input_tokens": found}
            return JSONResponse({"usage": usage})
        usage = {"prompt_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": found}}
        return JSONResponse({"usage": usage, "prompt_token_ids": tokens, "choices": [{"token_ids": [99_999]}]})

    paths = ("/v1/chat/completions", "/v1/messages")
    return Starlette(routes=[Route(path, answer, methods=["POST"]) for path in paths])


def checked(*texts, path="/v1/chat/completions"):
    """What a check finds, and the bodies that were sent."""
    bodies, more = [], {"stream": True, "stream_options": {}, "max_completion_tokens": 900, "temperature": 0}
    log = [Recorded(number, path, {"messages": text, **more}) for number, text in enumerate(texts, start=1)]
    with running(server(bodies)) as url:
        return AgentCheck(AgentSettings(url)).run(log), bodies


def test_what_was_computed_again():
    outcome, bodies = checked("a b c d e", "a b c d e f g h i", "a b c d X f g h i j", "fail", "a b c d e f g h i")
    counts = [(turn.num_before, turn.usage.num_cached, turn.num_again, turn.num_new) for turn in outcome.turns]
    assert counts == [(0, 0, 0, 5), (5, 4, 1, 4), (4, 4, 0, 6), (None, None, None, None), (9, 8, 1, 0)]
    assert outcome.share == 1 - 2 / 18
    said = list(notes(outcome))
    assert said[0].startswith("turn 3 parts from line 2 after 4 of its 9 tokens")
    assert said[1] == "turn 4 (line 4) was refused: HTTP 400: too long" and len(said) == 2
    assert rows(outcome)[-1][:8] == ("all", "", "33", "18", "16", "2", "15", "88.89 %")
    assert rows(outcome)[3][:3] == ("4", "chat/completions", "refused")
    salts = {body.pop("cache_salt") for body in bodies}
    assert len(salts) == 1
    assert bodies[0] == {"messages": "a b c d e", "temperature": 0, "return_token_ids": True, "max_tokens": 1}


def test_a_server_that_tells_no_ids():
    outcome, _ = checked("a b c d e", "a b c d e f", path="/v1/messages")
    assert [turn.usage.num_prompt for turn in outcome.turns] == [5, 6]
    assert outcome.share is None and rows(outcome)[1][2:6] == ("6", "-", "4", "-")
    assert list(notes(outcome)) == [
        "the server tells no token ids (return_token_ids), so that what stood before is not known"
    ]


def test_lines_that_generate_nothing_are_counted():
    with running(server([])) as url:
        outcome = AgentCheck(AgentSettings(url)).run([Recorded(1, "/v1/messages/count_tokens", {})])
    assert not outcome.turns and list(notes(outcome)) == [
        "1 lines of /v1/messages/count_tokens were not sent: nothing is generated there"
    ]


def test_no_server():
    with pytest.raises(TokenmillError, match=r"cannot be asked: .*is `tokenmill serve` running there"):
        AgentCheck(AgentSettings("http://127.0.0.1:9")).run([Recorded(1, "/v1/messages", {})])


def test_common_length():
    random = Random(4)
    for _ in range(200):
        one = [random.randrange(2) for _ in range(random.randrange(9))]
        other = [random.randrange(2) for _ in range(random.randrange(9))]
        count = 0
        while one[count : count + 1] == other[count : count + 1] != []:
            count += 1
        assert common_length(one, other) == count
