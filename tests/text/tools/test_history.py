"""Conversations with calls: transformers' texts, and old calls as the model wrote them."""

import copy
import json

import pytest
import tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

from tests.text.test_tokenizer import trained
from tests.text.tools.byte_grammar import admitted
from tests.text.tools.templates import TEMPLATES
from tokenmill.errors import ConfigError, RequestError
from tokenmill.registry import TOOL_FORMATS, lookup
from tokenmill.text.literal import chat_text, encode_chat
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tools.functions import ToolChoice, read_functions
from tokenmill.text.tools.history import unread
from tokenmill.text.tools.model_tools import tools_of

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "edit", "description": "Édit.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"path": "é 'a'", "lines": [1, 2]}
ONE_CALL = ("harmony", "llama3_json")  # formats of which an answer holds one call
IDS = {"kimi_k2": ["functions.edit:0", "functions.now:1"], "mistral": ["abcdefgh1", "abcdefgh2"]}


def tokenizer_of(template):
    return Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), chat_template=template)


def conversation(name, *, as_text):
    ids = IDS.get(name, ["call_1", "call_2"])
    calls = [("edit", ARGUMENTS), ("now", {})][: 1 if name in ONE_CALL else 2]
    written = [
        {
            "id": number,
            "type": "function",
            "function": {"name": called, "arguments": json.dumps(given, ensure_ascii=False) if as_text else given},
        }
        for number, (called, given) in zip(ids, calls, strict=False)
    ]
    results = [
        {"role": "tool", "tool_call_id": each["id"], "name": each["function"]["name"], "content": "done"}
        for each in written
    ]
    return [{"role": "user", "content": "Edit."}, {"role": "assistant", "tool_calls": written}, *results], calls


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_rendered_as_by_transformers(name):
    template = TEMPLATES[name]
    tools = tools_of(tokenizer_of(template))
    assert tools.form.name == name and tools.is_native
    # DeepSeek's template joins the arguments as a text, so there transformers needs one.
    original, calls = conversation(name, as_text=name == "deepseek_v31")
    if name == "lfm2":  # whose template shows no calls
        original[1] = {"role": "assistant", "content": tools.form.text(calls)}
    sent, _ = conversation(name, as_text=True)
    for each in sent[2:]:
        del each["name"]
    before = copy.deepcopy(sent)
    made, variables = tools.conversation(sent, TOOLS)
    assert sent == before
    wanted = render_jinja_template([copy.deepcopy(original)], tools=TOOLS, chat_template=template)[0][0]
    found = chat_text(tokenizer_of(template), made, add_generation_prompt=False, **variables)
    assert found == wanted


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_old_call_is_what_the_grammar_lets_the_model_write(name):
    template, functions = TEMPLATES[name], read_functions(TOOLS)
    tools, tokenizer = tools_of(tokenizer_of(template)), tokenizer_of(template)
    sent, calls = conversation(name, as_text=True)
    if name in ("olmo3", "lfm2_5"):  # their templates do not escape texts
        calls[0] = ("edit", {**ARGUMENTS, "path": "plain"})
        sent[1]["tool_calls"][0]["function"]["arguments"] = json.dumps(calls[0][1], ensure_ascii=False)
    texts = []
    for messages, begins in ((sent[:1], True), (sent[:2], False)):
        made, variables = tools.conversation(messages, TOOLS)
        texts.append(chat_text(tokenizer, made, add_generation_prompt=begins, **variables))
    assert texts[1].startswith(texts[0])
    answer = texts[1][len(texts[0]) :]
    written = tools.form.text([(called, given) for called, given in calls])
    assert answer.startswith(written)
    grammar = tools.grammar(functions, ToolChoice("required"))
    assert admitted(grammar, written) == "whole"


def test_every_format_has_a_template_here():
    missing = {name for name in TOOL_FORMATS if name not in TEMPLATES}
    assert missing == {"gemma", "deepseek_v3"}
    assert not lookup(TOOL_FORMATS, "gemma", "tool_format").words


PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_template_without_functions_gets_them_as_text():
    tools = tools_of(tokenizer_of(PLAIN))
    assert not tools.is_native and "system message" in tools.note
    sent, _ = conversation("hermes", as_text=True)
    made, variables = tools.conversation([{"role": "system", "content": "Be brief."}, *sent], TOOLS)
    text = chat_text(tokenizer_of(PLAIN), made, **variables)
    assert variables == {} and text.count("<tool_response>\ndone\n</tool_response>") == 2
    assert text.startswith("<|im_start|>system\nBe brief.\n\n") and json.dumps(TOOLS[0], ensure_ascii=False) in text
    assert (
        '<tool_call>\n{"name": "edit", "arguments": {"path": "é \'a\'", "lines": [1, 2]}}\n</tool_call>\n<tool' in text
    )
    assert [message["role"] for message in made] == ["system", "user", "assistant", "user"]
    made, _ = tools.conversation(sent, TOOLS)
    assert made[0]["role"] == "system"
    assert tools.conversation(sent[:1])[0] == sent[:1]


def test_ids_of_others_become_ids_of_the_format():
    tools = tools_of(tokenizer_of(TEMPLATES["mistral"]))
    sent, _ = conversation("hermes", as_text=True)
    made, _ = tools.conversation(sent, TOOLS)
    ids = [call["id"] for call in made[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in made[2:]] == ids and {len(each) for each in ids} == {9}


def test_what_clients_add_to_a_call_is_not_shown():
    """OpenAI's client has `parsed_arguments` in those of a stream, and Mistral's template writes a whole function."""
    tokenizer = tokenizer_of(TEMPLATES["mistral"])
    sent, _ = conversation("mistral", as_text=True)
    texts = [chat_text(tokenizer, tools_of(tokenizer).conversation(sent)[0])]
    for call in sent[1]["tool_calls"]:
        call["index"], call["function"]["parsed_arguments"] = 0, None
    assert chat_text(tokenizer, tools_of(tokenizer).conversation(sent)[0]) == texts[0]


def test_an_id_of_kimi_has_the_name_and_the_number_that_the_model_wrote():
    """Or, where the id does not say it, that of the call in the conversation. See Readers.call_id."""
    tools = tools_of(tokenizer_of(TEMPLATES["kimi_k2"]))
    first, _ = conversation("hermes", as_text=True)
    second = copy.deepcopy(first)
    for message in second[1:]:
        for each in (*message.get("tool_calls", ()), message):
            for key in ("id", "tool_call_id"):
                if key in each:
                    each[key] = {"call_1": "call_0a1b_7", "call_2": "toolu_x"}[each[key]]
    made, _ = tools.conversation([*first, *second], TOOLS)
    ids = [call["id"] for message in made for call in message.get("tool_calls", ())]
    assert ids == ["functions.edit:1", "functions.now:2", "functions.edit:7", "functions.now:3"]
    assert [message["tool_call_id"] for message in made if message["role"] == "tool"] == ids


@pytest.mark.parametrize("arguments", [None, "", " ", "{}", {}])
def test_no_arguments_are_an_empty_object(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    made, _ = tools_of(tokenizer_of(TEMPLATES["hermes"])).conversation([{"role": "assistant", "tool_calls": [call]}])
    assert made[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_an_empty_list_of_calls_is_none():
    """Llama's template writes "No tool calls found." where there is one."""
    made, _ = tools_of(tokenizer_of(TEMPLATES["hermes"])).conversation(
        [{"role": "assistant", "content": "x", "tool_calls": []}]
    )
    assert made == [{"role": "assistant", "content": "x"}]


def test_words_of_a_template_may_be_quoted():
    template = TEMPLATES["hermes"].replace('"name"', '\\"name\\"').replace('"arguments"', '\\"arguments\\"')
    assert tools_of(tokenizer_of(template)).note == "tool format hermes, by the words of the chat template"


def test_a_way_of_calling_that_is_not_known_is_told():
    tools = tools_of(tokenizer_of("{{ tools }}{{ messages }}"))
    assert (tools.form.name, tools.is_native) == ("hermes", True) and "is not known" in tools.note


def test_a_format_may_be_named():
    tools = tools_of(tokenizer_of(TEMPLATES["hermes"]), "mistral")
    assert (tools.form.name, tools.note) == ("mistral", "tool format mistral, as set")
    with pytest.raises(ConfigError, match=r"tool_format = 'qwen3_coder' .*did you mean 'qwen3_xml'"):
        tools_of(tokenizer_of(TEMPLATES["hermes"]), "qwen3_coder")


@pytest.mark.parametrize(
    ("end", "name"),
    [('</arg_key>" -}}\n  {{- "', "glm47"), ('</arg_key>" }}{{- "', "glm47"), ('</arg_key>\\n" -}}\n{{- "', "glm45")],
)
def test_a_template_may_write_the_words_in_several_texts(end, name):
    """As Laguna's do: "</arg_key>" -}}{{- "<arg_value>"."""
    calls = f'{{% for f in tools %}}<tool_call>{{{{- "<arg_key>" ~ f ~ "{end}<arg_value>" -}}}}{{% endfor %}}'
    assert tools_of(tokenizer_of(calls)).form.name == name


def test_control_tokens_of_a_format_are_shown():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.add_special_tokens(["</s>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"])
    tokenizer = Tokenizer(backend, chat_template=TEMPLATES["mistral"])
    assert tools_of(tokenizer).shown_ids == {1, 3, 4} and tools_of(tokenizer).thinking.begin == "<think>"
    assert tools_of(tokenizer, "mistral_args").shown_ids == {1, 2, 3, 4}


CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
REFUSED = {
    "arguments of the call of 'now' are no JSON text, 7": [
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": 7}}]}
    ],
    "is no call: ": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "p"}}]}],
    "result of a call, tool_call_id = '2'": [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "2", "content": "x"},
    ],
    "which no message before it makes": [{"role": "tool", "content": "x"}],
    "is no call": [{"role": "assistant", "tool_calls": [{"id": "1"}]}],
    "a list of calls": [{"role": "assistant", "tool_calls": "f()"}],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_conversation_with_calls_is_refused(message):
    with pytest.raises(RequestError, match=message):
        tools_of(tokenizer_of(TEMPLATES["hermes"])).conversation(REFUSED[message])


@pytest.mark.parametrize("given", ['{"a', '{"a": "x" y"}', "[1]", '"{}"', "f(x)", "[" * 5000])
@pytest.mark.parametrize("name", ["hermes", "qwen3_xml", "deepseek_v31"])
def test_arguments_that_are_no_object_are_shown_as_a_text_and_told(name, given):
    """vLLM takes them as an empty object, since refusing what is sent again at each turn would end the conversation."""
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": given}}
    sent = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [CALL, call]}]
    made, _ = tools_of(tokenizer_of(TEMPLATES[name])).conversation(sent)
    text = chat_text(tokenizer_of(TEMPLATES[name]), made, add_generation_prompt=False)
    assert (given if name == "qwen3_xml" else json.dumps({"arguments": given})) in text
    (told,) = unread(sent)
    assert told.startswith("message 2 of the chat: the arguments of the call of 'now' are no JSON object")


def test_a_call_of_a_custom_tool_is_one_of_a_function_with_an_input():
    custom = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": 'a"\nb'}}
    function = {
        "id": "1",
        "type": "function",
        "function": {"name": "patch", "arguments": json.dumps({"input": 'a"\nb'})},
    }
    result = {"role": "tool", "tool_call_id": "1", "content": "done"}
    tools = tools_of(tokenizer_of(TEMPLATES["hermes"]))
    first, second = (
        tools.conversation([{"role": "assistant", "tool_calls": [call]}, result])[0] for call in (custom, function)
    )
    assert (
        first == second
        and first[1]["name"] == "patch"
        and unread([{"role": "assistant", "tool_calls": [custom]}]) == []
    )


@pytest.mark.parametrize("name", ["hermes", "qwen3_xml", "glm45", "deepseek_v31"])
def test_numbers_stay_as_they_were_spelled(name):
    spelled = '{"x": 1.50, "y": [1e5, -0, 7, 0.25], "z": {"deep": 1E+2}}'
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": spelled}}
    tokenizer = Tokenizer(trained(), chat_template=TEMPLATES[name])
    made, _ = tools_of(tokenizer).conversation([{"role": "assistant", "tool_calls": [call]}])
    text = tokenizer.decode(encode_chat(tokenizer, made), skip_special=False)
    for number in ("1.50", "[1e5, -0, 7, 0.25]", '{"deep": 1E+2}'):
        assert number in text
    assert "100000.0" in chat_text(tokenizer, made) or name == "deepseek_v31"


@pytest.mark.parametrize("name", ONE_CALL)
def test_calls_of_one_message_are_turns_where_a_template_shows_one(name):
    calls = [{**CALL, "id": number} for number in "12"]
    sent = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
    ]
    tokenizer = tokenizer_of(TEMPLATES[name])
    made, _ = tools_of(tokenizer).conversation(sent)
    roles = ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["role"] for message in made] == roles
    assert [message.get("tool_call_id") for message in made if message["role"] == "tool"] == ["1", "2"]
    text = chat_text(tokenizer, made)
    assert text.index("one") < text.index("two") and text.count("{}") == 2
    assert ("Hm.\nI look." in text) == (name == "harmony")
