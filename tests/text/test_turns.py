"""The turns that a chat template takes, for templates as models have them."""

import pytest
import tokenizers

from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.turns import TurnRules, turns_of

END = "<|im_end|>\n"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + END + "{% endfor %}"
FIRST_ONLY = """{% if messages[0].role == 'system' %}S {{ messages[0].content }} {% endif %}{% for m in messages %}
{% if m.role != 'system' %}{{ m.role }} {{ m.content }} {% endif %}{% endfor %}"""
HOISTED = """{% for m in messages if m.role == 'system' %}S {{ m.content }} {% endfor %}
{% for m in messages if m.role != 'system' %}{{ m.role }} {{ m.content }} {% endfor %}"""
STRICT = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}] {{ m.content }}{% endfor %}"""
LAST_ONLY = "{{ messages[-1].content }}"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (CHATML, TurnRules(True, True, True)),
        (FIRST_ONLY, TurnRules(False, True, True)),
        (HOISTED, TurnRules(False, True, True)),
        (STRICT, TurnRules(False, False, False)),
        (LAST_ONLY, TurnRules(False, False, False)),
        (None, TurnRules(False, False, False)),
    ],
    ids=["chatml", "first only", "hoisted", "strict", "last only", "none"],
)
def test_it_is_found_by_rendering(template, wanted):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer = Tokenizer(backend, chat_template=template)
    assert turns_of(tokenizer) == wanted == turns_of(tokenizer)
