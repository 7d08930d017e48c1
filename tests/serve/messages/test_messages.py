"""POST /v1/messages, through Anthropic's own client."""

import anthropic
import pytest

ASK = {"model": "claude-opus-4", "max_tokens": 8, "system": "w1 w2", "extra_body": {"temperature": 0}}
BODY = {"model": "claude-opus-4", "max_tokens": 8, "system": "w1 w2", "temperature": 0}
MESSAGES = [{"role": "user", "content": "w3 w4"}]
CHAT = [{"role": "system", "content": "w1 w2"}, *MESSAGES]


@pytest.fixture(scope="module")
def wanted(quiet):
    return quiet.chat(CHAT, max_new_tokens=8)


def test_the_answer_is_that_of_the_engine(claude, wanted):
    done = claude.messages.create(**ASK, messages=MESSAGES)
    (block,) = done.content
    assert (done.type, done.role, block.type, block.text) == ("message", "assistant", "text", wanted.text)
    assert done.stop_reason == "max_tokens" and done.stop_sequence is None
    usage = done.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == wanted.num_prompt_tokens and usage.output_tokens == 8


def test_a_stream_is_the_same_message(claude, wanted):
    with claude.messages.stream(**ASK, messages=MESSAGES) as stream:
        events = list(stream)
        done = stream.get_final_message()
    kinds = [event.type for event in events if event.type in ("message_start", "content_block_start", "message_stop")]
    assert kinds == ["message_start", "content_block_start", "message_stop"]
    assert done.content[0].text == wanted.text == "".join(e.text for e in events if e.type == "text")
    assert done.stop_reason == "max_tokens" and done.usage.output_tokens == 8


def test_cached_tokens_are_counted_at_the_beginning_and_at_the_end(claude):
    question = [{"role": "user", "content": " ".join(f"w{number}" for number in range(40, 70))}]
    claude.messages.create(**ASK, messages=question)
    with claude.messages.stream(**ASK, messages=question) as stream:
        events = list(stream)
    begin = next(event.message.usage for event in events if event.type == "message_start")
    end = next(event.usage for event in events if event.type == "message_delta")
    assert begin.cache_read_input_tokens == end.cache_read_input_tokens > 0
    assert begin.input_tokens + begin.cache_read_input_tokens == 35


def test_a_turn_finds_what_stood_before(claude, quiet):
    """Though the line of billing is another one, and the first message comes as a list and later as a text."""
    words = " ".join(f"w{number}" for number in range(100, 125))

    def system(number):
        billing = f"x-anthropic-billing-header: cc_version=2.1; cch={number:05x};"
        return [{"type": "text", "text": billing}, {"type": "text", "text": "w90 w91"}]

    told = {"role": "system", "content": "w92 w93"}
    first = [{"role": "user", "content": [{"type": "text", "text": words}]}, told]
    claude.messages.create(**(ASK | {"system": system(1)}), messages=first)
    second = [{"role": "user", "content": words}, told, {"role": "assistant", "content": "w94"}, *MESSAGES]
    usage = claude.messages.create(**(ASK | {"system": system(2)}), messages=second).usage
    before = quiet.chat_prompt([{"role": "system", "content": "w90 w91"}, {"role": "user", "content": words}, told])
    assert usage.cache_read_input_tokens == len(before) // 8 * 8  # blocks of 8 tokens


def test_a_stop_sequence(claude, wanted):
    word = wanted.text.split()[3]
    done = claude.messages.create(**ASK, messages=MESSAGES, stop_sequences=[word])
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", word)
    assert done.content[0].text == wanted.text[: wanted.text.index(word)]


def test_more_tokens_than_the_context_has(claude):
    done = claude.messages.create(**(ASK | {"max_tokens": 32000}), messages=MESSAGES)
    assert done.stop_reason == "model_context_window_exceeded"


def test_tokens_are_counted(claude, quiet):
    found = claude.messages.count_tokens(model="claude-x", system="w1 w2", messages=MESSAGES)
    assert found.input_tokens == len(quiet.chat_prompt(CHAT))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "w3 w4", "cache_control": {"type": "ephemeral"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": "w3"}, {"type": "text", "text": "w4"}]}],
    ],
)
def test_blocks_are_joined(claude, wanted, messages):
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"},
        {"type": "text", "text": "w1 w2", "cache_control": {"type": "ephemeral"}},
    ]
    done = claude.messages.create(**(ASK | {"system": system}), messages=messages)
    assert done.content[0].text == wanted.text


def test_a_system_message_inside_stays_where_it_is(claude, quiet):
    inside = [*MESSAGES, {"role": "system", "content": "w5"}]
    done = claude.messages.create(**ASK, messages=inside)
    assert done.content[0].text == quiet.chat([*CHAT, inside[1]], max_new_tokens=8).text


def test_an_answer_that_was_begun_goes_on(claude, quiet):
    begun = [*MESSAGES, {"role": "assistant", "content": "w7"}]
    done = claude.messages.create(**ASK, messages=begun)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    tokens = quiet.chat_prompt([*CHAT, begun[1]], **options)
    assert done.content[0].text.strip() == quiet.generate(tokens, max_new_tokens=8).text.strip()


def test_what_is_unknown_is_accepted_and_named(http, claude):
    body = BODY | {"messages": MESSAGES, "tempreature": 1, "metadata": {}, "context_management": {"edits": []}}
    response = http.post("/v1/messages?beta=true", json=body, headers={"anthropic-beta": "a,b"})
    assert response.status_code == 200
    assert response.json()["warnings"] == ["unknown field 'tempreature' is ignored"]


@pytest.mark.parametrize(("path", "more"), [("messages", {"messages": MESSAGES}), ("responses", {"input": "w1"})])
def test_what_an_answer_has_no_place_for_is_named(http, path, more):
    unshown = {"logprobs": True, "prompt_logprobs": 1, "receipt": True}
    response = http.post(f"/v1/{path}", json={"max_tokens": 2} | more | unshown)
    assert response.status_code == 200
    assert response.json()["warnings"] == [f"unknown field {name!r} is ignored" for name in unshown]


def test_the_model_that_is_served(claude):
    (model,) = claude.models.list()
    assert model.type == "model" and model.display_name == model.id == claude.models.retrieve("claude-x").id
    assert model.max_input_tokens == 95
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("gpt-4")


def test_an_image_is_not_passed_over_in_silence(http):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    body = BODY | {"messages": [{"role": "user", "content": [{"type": "text", "text": "w3"}, image]}]}
    assert "not shown to the model" in http.post("/v1/messages", json=body).json()["warnings"][0]


def test_errors_have_the_form_of_the_protocol(claude, http):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(**ASK, messages=[{"role": "user", "content": "w1 " * 100}])
    told = caught.value.body
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"] == "prompt is too long: 105 tokens > 95 maximum"
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(**(ASK | {"model": "gpt-4"}), messages=MESSAGES)
    assert caught.value.body["error"]["type"] == "not_found_error"
    for body in ({}, {"messages": [{}], "max_tokens": 1}, {"messages": MESSAGES, "max_tokens": 0}):
        response = http.post("/v1/messages", json=body)
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
