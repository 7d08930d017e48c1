"""What goes through the gate beside streams: errors, keys, sessions, metrics, and answers that are no streams."""

import asyncio
import json
import time

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.scale.fakes import FakeFleet, ask, at_socket, events_of
from tests.scale.test_relay import BODIES, CHAT, COMPLETIONS, MESSAGES, SAMPLED, read, stream
from tests.serve.loop.test_driver import Gate as StepGate
from tokenmill.scale import relay
from tokenmill.scale.fleet import AllBusy
from tokenmill.scale.gate import Gate, merged
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.loop import driver
from tokenmill.serve.start.options import Options

WHOLE = {"prompt": "w1 w2", "max_tokens": 5, "temperature": 0}


def asked(app, path, body=None, **more):
    status, headers, data = asyncio.run(ask(app, path, body, **more))
    return status, headers, json.loads(data)


@pytest.fixture(autouse=True)
def _quiet(request):
    if "fleet" in request.fixturenames:
        fleet = request.getfixturevalue("fleet")
        fleet.on_part, fleet.leaving = lambda *_: False, set()
        fleet.calls.clear()


def test_answers_are_those_of_a_replica(fleet):
    gate = Gate(fleet)
    assert asked(gate, "/v1/models")[2]["data"][0]["id"] == "words"
    assert asked(gate, "/v1/models/words")[0] == 200 and asked(gate, "/v1/models/other")[0] == 404
    assert asked(gate, "/tokenize", {"prompt": "w1 w2"})[2]["tokens"] == [1, 2]
    assert asked(gate, "/health")[2] == asked(gate, "/ready")[2] == {"status": "ok"}
    status, headers, data = asyncio.run(ask(gate, "/", headers=[(b"accept", b"text/html")]))
    assert status == 200 and b"<html" in data and headers["content-type"].startswith("text/html")
    status, headers, answer = asked(gate, COMPLETIONS, WHOLE)
    assert status == 200 and answer["usage"]["completion_tokens"] == 5 and headers["x-replica"] in fleet.mills


@pytest.mark.parametrize("streams", [False, True])
def test_refusals_are_those_of_a_replica(fleet, streams):
    gate = Gate(fleet)
    status, _, answer = asked(gate, COMPLETIONS, WHOLE | {"temperature": -1, "stream": streams})
    assert (status, answer["error"]["param"]) == (400, "temperature")
    assert asked(gate, COMPLETIONS, WHOLE | {"model": "other", "stream": streams})[0] == 404
    assert asked(gate, COMPLETIONS, [1])[0] == 400 and asked(gate, "/nothing")[0] == 404
    assert (
        asked(gate, CHAT, {"messages": [{"role": "user", "content": "w1 " * 200}], "stream": streams})[2]["error"][
            "code"
        ]
        == "context_length_exceeded"
    )


def test_keys_are_checked_before_and_tenants_known_behind(fleet):
    guarded = Guard(Gate(fleet), Options("words", keys=("secret", "other")), is_loopback=True)
    assert asked(guarded, COMPLETIONS, WHOLE)[0] == 401 and not fleet.calls
    for key in (b"secret", b"other"):
        assert asked(guarded, COMPLETIONS, WHOLE, headers=[(b"authorization", b"Bearer " + key)])[0] == 200
    (_, first), (_, second) = fleet.calls
    tenants = [call.scope["state"]["tenant"] for call in (first, second)]
    assert len(set(tenants)) == 2 and all(tenants) and first.key != second.key
    assert b"authorization" not in dict(first.scope["headers"])


def test_a_conversation_stays_where_it_is(fleet):
    gate, turns = Gate(fleet), list(MESSAGES)
    for number in range(3):
        assert asked(gate, CHAT, {"messages": turns, "max_tokens": 2})[0] == 200
        turns += [{"role": "assistant", "content": f"w{number}"}, {"role": "user", "content": f"w{number + 9}"}]
    assert len({(name, call.key) for name, call in fleet.calls}) == 1
    others = [[{"role": "user", "content": f"w{number}"}] for number in range(20)]
    for messages in others:
        asked(gate, CHAT, {"messages": messages, "max_tokens": 1})
    assert {name for name, _ in fleet.calls} == set(fleet.replicas)


def test_a_session_goes_where_its_name_leads(fleet, chat_model, tmp_path):
    kept = FakeFleet(chat_model, 2, session_dir=tmp_path)
    try:
        gate = Gate(kept)
        text = " ".join(f"w{number}" for number in range(40))
        assert asked(gate, "/v1/sessions/tale/save", {"prompt": text})[2]["tokens"] == 40
        assert asked(gate, "/v1/sessions/tale/restore", {})[0] == 200
        named = [(b"x-session-id", b"tale")]
        body = {"prompt": text + " w7", "max_tokens": 1}
        found = asked(gate, COMPLETIONS, body, headers=named)[2]
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
        assert len({name for name, _ in kept.calls}) == 1
        (home,) = {name for name, _ in kept.calls}
        kept.kill(home)  # the other one finds the file
        assert asked(gate, "/v1/sessions/tale/restore", {})[0] == 200
        assert asked(gate, "/v1/sessions/tale/erase", {})[2]["erased"]
    finally:
        kept.close()


def test_metrics_of_all_replicas_stand_on_one_page(fleet):
    gate = Gate(fleet)
    status, _, page = asyncio.run(ask(gate, "/metrics"))
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    waiting = families["tokenmill:num_requests_waiting"]
    assert status == 200 and {each.labels["replica"] for each in waiting.samples} == set(fleet.replicas)
    assert page.decode().count("# TYPE tokenmill:num_requests_waiting ") == 1
    assert asked(gate, "/load")[2] == {"server_load": 0}
    assert merged({"a": "# HELP x X\n# TYPE x gauge\nx 1\n", "b": "# HELP x X\n# TYPE x gauge\nx 2\n"}) == (
        '# HELP x X\n# TYPE x gauge\nx{replica="a"} 1\nx{replica="b"} 2\n'
    )


def test_what_is_no_stream_is_asked_for_again(fleet):
    gate, body = Gate(fleet), WHOLE | {"temperature": 0.8, "seed": 4, "n": 2}
    wanted = asked(gate, COMPLETIONS, body)[2]
    (first, _), *_ = fleet.calls
    fleet.on_part = lambda call, replica, message: replica == first
    found = asked(gate, COMPLETIONS, body)[2]
    assert found["choices"] == wanted["choices"] and len(fleet.calls) == 3


def test_a_request_that_every_replica_dies_of_is_given_up(fleet):
    fleet.on_part = lambda *_: True
    for body in (WHOLE, WHOLE | {"stream": True}):
        fleet.calls.clear()
        status, headers, answer = asked(Gate(fleet), COMPLETIONS, body)
        assert (status, answer["error"]["code"]) == (503, "replica_lost") and "retry-after" in headers
        assert len(fleet.calls) == relay.MAX_LOST
    fleet.on_part = lambda call, replica, message: b"w" in message.get("body", b"")
    _, _, data = asyncio.run(ask(Gate(fleet), CHAT, BODIES["chat"][1]))
    assert events_of(data)[-1]["error"]["code"] == "replica_lost"


def test_a_stream_leaves_a_replica_that_is_to_end(fleet):
    path, body = BODIES["several"]
    wanted = read(stream(fleet, path, body))
    (first, _), *_ = fleet.calls
    fleet.calls.clear()

    def leave(call, replica, message):
        if fleet.calls[0][0] == replica and b'"content":"w' in message.get("body", b"").replace(b" w", b"w"):
            fleet.leaving.add(first)

    fleet.on_part = leave
    assert read(stream(fleet, path, body)) == wanted
    assert [name == first for name, _ in fleet.calls] == [True, False]


def test_a_stream_stays_where_no_other_replica_takes_it(fleet):
    """As one of another version, whose texts may be others."""
    path, body = BODIES["chat"]
    wanted = read(stream(fleet, path, body))
    (first, _), *_ = fleet.calls
    fleet.calls.clear()
    service = fleet.mills[next(iter(set(fleet.mills) - {first}))]._served.service
    own = service.fingerprint

    def leave(call, replica, message):
        if b"content" in message.get("body", b""):
            service.fingerprint = "fp_other"
            fleet.leaving.add(first)

    fleet.on_part = leave
    try:
        assert read(stream(fleet, path, body)) == wanted
        assert [name == first for name, _ in fleet.calls] == [True, False]
        # If its replica dies there is none that could go on, and the client hears why.
        fleet.leaving.clear()
        seen = []
        fleet.on_part = lambda call, name, message: name == first and (seen.append(message), len(seen) > 4)[1]
        _, _, data = asyncio.run(ask(Gate(fleet), path, body))
        assert events_of(data)[-1]["error"]["code"] == "other_fingerprint"
    finally:
        service.fingerprint = own


def test_a_stream_waits_for_a_replica_for_some_time(chat_model, monkeypatch):
    monkeypatch.setattr(relay, "TICK_S", 0.01)
    monkeypatch.setattr(relay, "SILENCE_S", 0.02)
    fleet = FakeFleet(chat_model, 1)
    path, body = BODIES["chat"]
    try:
        wanted = read(stream(fleet, path, body))
        seen = []

        def die(call, replica, message):
            seen.append(message)
            if replica == "r0" and len(seen) == 5:
                fleet.kill("r0")
                asyncio.get_running_loop().call_later(0.3, fleet.add)
                return True
            return False

        fleet.on_part = die
        _, _, data = asyncio.run(ask(Gate(fleet), path, body))
        assert read(events_of(data)) == wanted and b"\n: " in b"\n" + data
        # None comes: an error is the last event, and what has not begun gets 503.
        seen.clear()
        fleet.on_part = lambda *_: len(seen) == 5 or bool(seen.append(1))
        monkeypatch.setattr(fleet, "choose", lambda call, own=fleet.choose: own(call) if len(fleet.calls) < 4 else [])
        fleet.calls = [None] * 3
        monkeypatch.setattr(FakeFleet, "replicas", property(lambda _: frozenset()))
        _, _, data = asyncio.run(ask(Gate(fleet, patience_s=0.2), path, body))
        assert events_of(data)[-1]["error"]["code"] == "replica_lost"
        assert asked(Gate(fleet, patience_s=0.1), COMPLETIONS, WHOLE)[0] == 503
        assert asked(Gate(fleet), "/ready")[2]["error"]["code"] == "no_replica"
    finally:
        monkeypatch.undo()
        fleet.close()


def test_a_full_replica_is_passed_by_and_full_ones_are_told(chat_model):
    fleet = FakeFleet(chat_model, 2, {"max_sequences": 1}, max_queued=0)
    try:
        gate = Gate(fleet)
        assert asked(gate, COMPLETIONS, WHOLE)[0] == 200
        first = fleet.calls[0][0]
        slots = {name: mill._served.admission for name, mill in fleet.mills.items()}
        with slots[first].slots(1):
            status, headers, _ = asked(gate, COMPLETIONS, WHOLE)
            assert status == 200 and headers["x-replica"] != first
            with slots[headers["x-replica"]].slots(1):
                for body in (WHOLE, WHOLE | {"stream": True}):
                    status, headers, answer = asked(gate, COMPLETIONS, body)
                    assert (status, answer["error"]["code"]) == (429, "queue_full") and int(headers["retry-after"]) >= 1
    finally:
        fleet.close()


def test_the_limit_of_the_fleet_is_429_too(fleet, monkeypatch):
    async def full(call):
        raise AllBusy(3)
        yield

    monkeypatch.setattr(fleet, "answer", full)
    status, headers, answer = asked(Gate(fleet), COMPLETIONS, WHOLE)
    assert (status, headers["retry-after"], answer["error"]["code"]) == (429, "3", "queue_full")


def test_an_engine_that_fails_is_left(chat_model):
    fleet = FakeFleet(chat_model, 2)
    path, body = BODIES["chat"]
    try:
        wanted = read(stream(fleet, path, body))
        mill = fleet.mills[fleet.calls[0][0]]
        core, steps = mill._served.engine.core, []
        step = core.loop.step

        def fail():
            steps.append(1)
            if len(steps) == 5:
                raise RuntimeError("broken")
            step()

        core.loop.step = fail
        found = read(stream(fleet, path, body))
        assert found[0] == wanted[0] and len(steps) >= 5
        with pytest.raises(Exception, match="failed"):
            mill.check_health()
    finally:
        fleet.close()


def test_a_client_that_leaves_is_heard_of(fleet):
    async def leave():
        asking = asyncio.ensure_future(ask(Gate(fleet), COMPLETIONS, WHOLE | {"max_tokens": 90, "stream": True}))
        while not fleet.calls:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(leave())
    for mill in fleet.mills.values():
        assert mill._served.admission.num_open == 0


def test_at_the_end_new_requests_are_refused(fleet):
    gate = Gate(fleet)
    gate.is_draining = True
    assert asked(gate, COMPLETIONS, WHOLE)[2]["error"]["code"] == "shutting_down"
    assert asked(gate, "/ready")[0] == 503 and asked(gate, "/health")[0] == 200


def test_streams_without_a_seed_go_on_too(fleet):
    """A cut stream equals the one that its own seed gives: read from the tokens that come after the cut."""
    body = {**BODIES["chat"][1], "seed": None, "stream": True, "return_token_ids": True}
    seen, seeds = [], []

    def cut(call, replica, message):
        seen.append(replica)
        if call.written.begun:
            seeds.append(call.written.begun["seed"])
        return replica == seen[0] and len(seen) == 7

    fleet.on_part = cut
    found = read(stream(fleet, CHAT, body))
    fleet.on_part = lambda *_: False
    assert read(stream(fleet, CHAT, body | {"seed": seeds[0]}))[0] == found[0]
    assert SAMPLED["seed"] != seeds[0]


def test_a_client_that_has_read_everything_and_gone_is_noticed(chat_model, monkeypatch):
    """Its connection ends without a reset, before there is an event that could be written for it."""
    monkeypatch.setattr(driver, "SILENCE_S", 1e6)
    monkeypatch.setattr(relay, "SILENCE_S", 1e6)
    fleet = FakeFleet(chat_model, 1)
    core = fleet.mills["r0"]._served.driver.core
    steps = StepGate(core)
    with at_socket(fleet) as (server, url):
        for path in (CHAT, "/api/chat"):
            body = {"model": "words", "messages": MESSAGES, "stream": True}
            with httpx2.stream("POST", f"{url}{path}", json=body, timeout=60) as answer:
                assert answer.status_code == 200
            while server.num_open:
                time.sleep(0.01)
        steps.opened.set()
        while core.trackers:
            time.sleep(0.01)
