"""Tiny models that speak in words: token i is the word "wi", unless other names are given for the last tokens."""

import json

import tokenizers

from tests.tiny_models import VOCABULARY, save

ROLES = ("user", "assistant", "system")
TEMPLATE = """{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}
{% if add_generation_prompt %}assistant{% endif %}"""


def save_word_model(directory, template=None, last=(), tiny="llama"):
    """The model's directory. Its context has 128 tokens, and it never ends an answer by itself."""
    path = save(tiny, directory)
    names = [*(f"w{number}" for number in range(VOCABULARY - len(last))), *last]
    vocabulary = {name: number for number, name in enumerate(names)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(path / "tokenizer.json"))
    if template is not None:
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return path


def save_chat_model(directory, tiny="llama"):
    """The path of a word model with a chat template; its last three tokens are the words for the roles."""
    return str(save_word_model(directory, TEMPLATE, ROLES, tiny))
