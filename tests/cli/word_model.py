"""A tiny model that speaks in words: token i is the word "wi", and the roles of a conversation are words too."""

import json
from pathlib import Path

import tokenizers

from tests.tiny_models import VOCABULARY, save

TEMPLATE = """{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}
{% if add_generation_prompt %}assistant{% endif %}"""
ROLES = ("user", "assistant", "system")


def save_word_model(directory: Path) -> str:
    """The model's directory. Its context has 128 tokens, and it never ends an answer by itself."""
    path = save("llama", directory)
    names = [f"w{number}" for number in range(VOCABULARY - len(ROLES))] + list(ROLES)
    vocabulary = {name: number for number, name in enumerate(names)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return str(path)
