"""Tiny models that read and write bytes, so that they take any text: token i is the byte i, 256 ends an answer."""

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.tiny_models import build

END = "<end>"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}assistant: {% endif %}"


def save_byte_model(directory, context=1024, std=0.15, **numbers):
    """The model's directory. std: of its weights; smaller ones make its greedy choices closer calls."""
    alphabet = _bytes_to_letters()
    vocabulary = {alphabet[byte]: byte for byte in range(256)} | {END: 256}
    made = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": context,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": None,
    }
    model = build("llama", made | numbers)
    if std != 0.15:
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.data *= std / 0.15
    model.save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": END}))
    return directory


THINK = 257, 258  # the ids of the marks of a thought, in a model that thinks


def save_thinking_model(directory):
    """The directory of a byte model with marks of a thought."""
    save_byte_model(directory, vocab_size=259)
    file = str(directory / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.add_special_tokens(["<think>", "</think>"])
    tokenizer.save(file)
    return directory


FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
"""Qwen2.5-Coder's marks for filling in, which have the ids from 257 on."""


def save_infill_model(directory, marks=FIM):
    """The directory of a byte model with marks for filling in; it writes none of its own accord for long."""
    save_byte_model(directory, vocab_size=257 + len(marks))
    file = str(directory / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.add_special_tokens(list(marks))
    tokenizer.save(file)
    return directory


def _bytes_to_letters():
    """GPT-2's letters for bytes (openai/gpt-2, src/encoder.py): printable bytes as they are, the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
