"""Bytes that a grammar forces are spelled with the tokens that the tokenizer has for them."""

from tests.serve.scripted import WORDS, save_scripted_model
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.text.tokenizer import Tokenizer


def test_forced_texts_have_added_tokens_that_are_no_control_tokens(tmp_path):
    """As `<tool_call>` is in Qwen 2.5 and 3. Renamed control tokens move the ids of those after them."""
    tokenizer = Tokenizer.from_directory(tmp_path / save_scripted_model(tmp_path))
    vocabulary = vocabulary_of(tokenizer, 2000, (2,))
    for text in (f'"}}\n{WORDS[1]}', f"{WORDS[0]}\n{{", f"a{WORDS[2]}b{WORDS[3]}", "<|im_start|>"):
        found = vocabulary.tokens.tokenize_bytes(text.encode())
        wanted = tokenizer.backend.encode(text, add_special_tokens=False).ids
        assert found == wanted or text in tokenizer.control_ids
        assert not set(found) & set(tokenizer.control_ids.values())
