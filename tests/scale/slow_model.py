"""A model that speaks in words and takes milliseconds for each: its streams can be cut in their midst."""

import json

import tokenizers

from tests.tiny_models import VOCABULARY, build
from tests.word_model import ROLES, TEMPLATE

CONTEXT = 2048
SIZES = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def save_slow_model(directory):
    """The path of the model, written once."""
    path = directory / "slow"
    if not path.exists():
        model = build("llama", SIZES)
        model.generation_config.pad_token_id = None
        model.save_pretrained(path)
        names = [*(f"w{number}" for number in range(VOCABULARY - len(ROLES))), *ROLES]
        words = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="w0")
        )
        words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        words.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return str(path)
