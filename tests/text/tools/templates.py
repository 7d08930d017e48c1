# ruff: noqa: E501, RUF001
"""Small chat templates that show functions, calls and results in the words of the families that have such templates."""

CALL = "{% set f = call.function if call.function is defined else call %}"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
XML_TURN = "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n{% else %}"


def chatml(calls, told, result="<tool_response>\n{{ m.content }}\n</tool_response>", content=""):
    """calls: of one assistant's message. told: what introduces the functions, which are written as JSON."""
    return (
        "{% if tools %}<|im_start|>system\n" + told + "{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n"
        "{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n" + result + "<|im_end|>\n"
        "{% elif m.tool_calls %}<|im_start|>assistant\n"
        + (content or "{% if m.content %}{{ m.content }}{% endif %}")
        + calls
        + "<|im_end|>\n{% else %}"
        + TURN
        + "{% endif %}{% endfor %}"
        + OPEN
    )


def each(one, before="", after="", between=""):
    """A call's template for each call."""
    comma = "{% if not loop.last %}" + between + "{% endif %}"
    return before + "{% for call in m.tool_calls %}" + CALL + one + comma + "{% endfor %}" + after


JSON_CALL = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
PARAMETERS = (
    "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}\n</parameter>\n{% endfor %}"
)
LISTED = "{% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}"
BREAK = "{% if m.content or not loop.first %}\n{% endif %}"

GEMMA = (
    "{% macro shown(v) %}{% if v is string %}QUOTE{{ v }}QUOTE{% elif v is mapping %}{{ '{' }}{% for k, each in v | dictsort %}"
    "{{ k }}:{{ shown(each) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif v is sequence %}[{% for each in v %}"
    "{{ shown(each) }}{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}"
    "{% if tools %}<start_of_turn>developer\n{{ tools | tojson }}<end_of_turn>\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<start_function_response>response:{{ m.name }}{{ '{' }}value:QUOTE{{ m.content }}QUOTE{{ '}' }}"
    "<end_function_response>{% elif m.tool_calls %}<start_of_turn>model\n{% for c in m.tool_calls %}OPENcall:{{ c.function.name }}"
    "{{ shown(c.function.arguments) }}CLOSE{% endfor %}{% else %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

TEMPLATES = {
    "hermes": chatml(
        each(BREAK + "<tool_call>\n" + JSON_CALL + "\n</tool_call>"),
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    ),
    "qwen3_xml": chatml(
        each(BREAK + "<tool_call>\n<function={{ f.name }}>\n" + PARAMETERS + "</function>\n</tool_call>"),
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>",
    ),
    "seed_oss": chatml(
        each(
            BREAK + "<seed:tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}"
            "<parameter={{ k }}>{{ v if v is string else v | string }}</parameter>\n{% endfor %}</function>\n"
            "</seed:tool_call>"
        ),
        "<seed:tool_call>\n<function=example_function_name>",
    ),
    "minimax_m2": chatml(
        each(
            '<invoke name="{{ f.name }}">\n{% for k, v in f.arguments.items() %}<parameter name="{{ k }}">'
            "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n",
            "{% if m.content %}\n{% endif %}<minimax:tool_call>\n",
            "</minimax:tool_call>",
        ),
        '<minimax:tool_call>\n<invoke name="tool-name-1">',
    ),
    "glm45": chatml(
        each(
            BREAK + "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
            "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
        ),
        "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
    ),
    "glm47": chatml(
        each(
            "<tool_call>{{ f.name }}{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>"
            "<arg_value>{{ v if v is string else v | tojson }}</arg_value>{% endfor %}</tool_call>"
        ),
        "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>",
    ),
    "llama3_json": "{% if tools %}<|start_header_id|>user<|end_header_id|>\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}<|eot_id|>{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ {'output': m.content} | tojson }}"
    "{% elif m.tool_calls %}{% set f = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "mistral": "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have nine letters') }}{% endif %}[TOOL_RESULTS] {\"content\": {{ m.content }}, "
    '"call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}'
    "{{ c.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% else %}{{ m.content }}</s>"
    "{% endif %}{% endfor %}",
    "mistral_args": "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}"
    "[/TOOL_RESULTS]{% else %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}</s>{% endif %}{% endfor %}",
    "granite": "{% if tools %}<|start_of_role|>tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>\n{% endif %}"
    "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{% if m.tool_calls %}<|tool_call|>["
    + "{% for call in m.tool_calls %}"
    + CALL
    + JSON_CALL
    + "{% if not loop.last %}, {% endif %}{% endfor %}]{% else %}{{ m.content }}{% endif %}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
    "phi4_mini": "{% if tools %}<|system|><|tool|>{{ tools | tojson }}<|/tool|><|end|>{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{% if m.tool_calls %}<|tool_call|>[{% for call in m.tool_calls %}"
    + CALL
    + JSON_CALL
    + "{% if not loop.last %}, {% endif %}{% endfor %}]<|/tool_call|>{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "phi4_mini_json": chatml(
        each(JSON_CALL, "functools[", "]", ", "), "prefix function calls with functools marker, functools[…]"
    ),
    "deepseek_v31": "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
    "<｜User｜>{{ m.content }}<｜Assistant｜>{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}"
    "<｜tool▁output▁end｜>{% else %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% if loop.first %}"
    "<｜tool▁calls▁begin｜>{% endif %}<｜tool▁call▁begin｜>{{ c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}"
    "<｜tool▁call▁end｜>{% if loop.last %}<｜tool▁calls▁end｜>{% endif %}{% endfor %}<｜end▁of▁sentence｜>{% endif %}"
    "{% endfor %}",
    "kimi_k2": chatml(
        "<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
        "{% endif %}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
        "tools",
    ),
    "olmo3": chatml(
        "{% if m.content %}\n{% endif %}<function_calls>\n{% for c in m.tool_calls %}{% set f = c.function %}{{ f.name }}("
        "{% for k, v in f.arguments.items() %}{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v | tojson }}{% endif %}"
        "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}\n{% endif %}{% endfor %}\n</function_calls>",
        "<function_calls></function_calls>",
    ),
    # Published templates of LFM2 show no calls: these are part of a message's text.
    "lfm2": "{% if tools %}<|im_start|>system\nList of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + OPEN,
    "lfm2_5": chatml(
        each(
            "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v | tojson }}"
            "{% endif %}{% if not loop.last %}, {% endif %}{% endfor %})",
            "<|tool_call_start|>[",
            "]<|tool_call_end|>",
            ", ",
        ),
        "List of tools: ",
    ),
    "pythonic": chatml(
        each("{{ f.name }}(" + LISTED + ")", "[", "]", ", "),
        "[func_name1(params_name1=params_value1), func_name2(params)]",
    ),
    "nemotron_json": chatml(
        each(JSON_CALL, "<TOOLCALL>[", "]</TOOLCALL>", ", "),
        "<AVAILABLE_TOOLS>",
        "<TOOL_RESPONSE>[{{ m.content }}]</TOOL_RESPONSE>",
    ),
    "hunyuan": chatml(each(JSON_CALL, "<tool_calls>[", "]</tool_calls>", ", "), "<tool_calls>[…]</tool_calls>"),
    "functiongemma": GEMMA.replace("OPEN", "<start_function_call>")
    .replace("CLOSE", "<end_function_call>")
    .replace("QUOTE", "<escape>"),
    "gemma4": GEMMA.replace("OPEN", "<|tool_call>").replace("CLOSE", "<tool_call|>").replace("QUOTE", '<|"|>'),
    "harmony": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'assistant' %}{% if m.content and m.thinking and m.tool_calls %}{{ raise_exception('both') }}"
    "{% endif %}{% if m.tool_calls %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}"
    "<|end|>{% endif %}{% set f = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ f.name }}<|channel|>"
    "commentary json<|message|>{{ f.arguments | tojson }}<|call|>{% else %}<|start|>assistant<|channel|>final<|message|>"
    "{{ m.content }}<|end|>{% endif %}{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
}
# The environment of chat templates drops the line break behind a block.
TEMPLATES = {name: template.replace("%}\n", "%}{{ '\\n' }}") for name, template in TEMPLATES.items()}
