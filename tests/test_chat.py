"""Chat templates: the same text as transformers, and no template that hangs, eats memory or gets at Python."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from tokenmill.errors import CheckpointError, RequestError
from tokenmill.text.chat import render_chat

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported: " ~ message.role) }}
    {%- endif %}
{%- endfor %}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{% generation %}{% set inside = eos_token %}
{{ '<|assistant|>
'  + message['content'] + inside }}{% endgeneration %}

{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "reasoning": """{%- macro call(tool) -%}
<tool_call>{{ {"name": tool.name, "arguments": tool.arguments} | tojson(indent=2) }}</tool_call>
{%- endmacro %}
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] if message.role == 'user' %}
    {%- if not ns.found %}{%- set ns.last = loop.revindex0 %}{%- set ns.found = true %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- continue %}{%- endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.reasoning_content is defined and loop.index0 > ns.last %}
        {{- '<think>\n' ~ message.reasoning_content.strip('\n') ~ '\n</think>\n\n' }}
    {%- elif '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|' ~ message.role|upper ~ '|>' ~ content }}
    {%- for tool in message.tool_calls or [] %}{{- call(tool.function) }}{%- endfor %}
{%- endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}""",
}

ASK = [{"role": "user", "content": "Why is the sky blue?"}]
TURNS = [
    *ASK,
    {"role": "assistant", "content": " Rayleigh & <scattering>\n"},
    {"role": "user", "content": "日本語で?\n"},
]
SYSTEM = {"role": "system", "content": "Answer in 'one' word."}
THOUGHT = {
    "role": "assistant",
    "content": "<think>hm</think>\n\nIt is",
    "reasoning": "\nlet me see\n",
    "tool_calls": [{"function": {"name": "wetter", "arguments": {"Ort": "Köln", "tage": [1, 2.5, None, True]}}}],
}
TOOLS = [{"type": "function", "function": {"name": "wetter", "parameters": {"type": "object"}}}]


def theirs(template, messages, add_generation_prompt=True, **variables):
    texts, _ = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=add_generation_prompt, **SPECIAL, **variables
    )
    return texts[0]


def ours(template, messages=ASK, **variables):
    return render_chat(template, messages, special_texts=SPECIAL, **variables)


@pytest.mark.parametrize("messages", [ASK, TURNS, [SYSTEM, *TURNS]], ids=["ask", "turns", "system"])
@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name, prompted, messages):
    expected = theirs(TEMPLATES[name], messages, prompted)
    assert ours(TEMPLATES[name], messages, add_generation_prompt=prompted) == expected
    assert messages[-1]["content"].strip() in expected


@pytest.mark.parametrize("name", ["mistral", "reasoning"])
def test_tools_reasoning_and_other_variables_reach_the_template(name):
    variables = {"tools": TOOLS, "enable_thinking": False}
    messages = [*ASK, THOUGHT] if name == "reasoning" else [SYSTEM, *TURNS]
    assert ours(TEMPLATES[name], messages, **variables) == theirs(TEMPLATES[name], messages, **variables)


EXPRESSIONS = r"""
{{ messages|map(attribute='content')|join(', ') }}{{ messages|length }}{{ messages|first }}{{ (messages|last).role }}
{{ 'a'|center(9) }}|{{ 'x\ny'|indent(4, true) }}|{{ '%05.1f %s%%'|format(3.14159, 'é') }}|
{{ '{:>6}|{!r}'.format('a', [1]) }}
{{ messages|selectattr('role', 'eq', 'user')|map(attribute='role')|list }}{{ [3, 1, 2]|sort }}{{ [1, 2, 3]|sum }}
{{ [[1], [2]]|sum(start=[]) }}{{ '%s-%d' % ('a', 7) }}{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}
{{ 1 / 4 }}{{ -3 }}
{{ {'b': 1, 'a': '<&>'}|tojson }}{{ {'b': 1, 'a': 2}|tojson(indent=2, sort_keys=True) }}
{{ 'é'|tojson(ensure_ascii=True) }}
{{ {'b': 1, 'a': 2}|dictsort }}{{ {'a': 1}|items|list }}{{ 'a-b'.split('-')[0] }}{{ 'abc'[::-1] }}
{{ 'abc'[1:] ~ 1 ~ none }}
{{ missing is defined }}{{ missing|default('d') }}{{ 'a' in 'cab' }}{{ 1 in [1] }}{{ 2 < 3 <= 3 }}
{{ 'a' if true else 'b' }}
{{ dict(a=1, b='2') }}{{ '3'|int + 1 }}{{ '<b>'|e }}{{ ('<b>'|safe) ~ '<' }}{{ [1, 1, 2]|unique|list }}
{{ range(3)|list }}
{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{% filter upper %}x{% endfilter %}{{ 3.7|round|int }}
{% set block %}in{{ 1 }}{% endset %}{{ block }}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{{ loop.cycle('x', 'y') }}{% endfor %}
{% for i in range(9) if i is odd %}{% if i == 5 %}{% break %}{% endif %}{{ loop.index }}{{ i }},{% else %}no{% endfor %}
{% for i in [] %}{% else %}empty{% endfor %}{% if messages|selectattr('role', 'eq', 'x') %}truthy{% endif %}
{% macro wrap(x, y=3) %}[{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}{{ wrap(1) }}{% call wrap(2) %}i{% endcall %}
