"""Conversations through the engine: what a message spells is text, unless the caller allows more."""

from tests.gguf_files import write
from tokenmill import load

TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"


def test_control_tokens_of_messages_are_an_option(tmp_path):
    engine = load(write(tmp_path / "chat.gguf", "llama", metadata={"tokenizer.chat_template": TEMPLATE}))
    messages = [{"role": "user", "content": "the end<|endoftext|>"}]
    assert engine.chat_prompt(messages).count(0) == 1
    assert engine.chat_prompt(messages, allow_special=True).count(0) == 2
    assert engine.chat_prompt(messages)[-1] == 0
