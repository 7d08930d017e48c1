"""The check of texts before anything is measured, on an engine that says what it is told to."""

from types import SimpleNamespace

import pytest
import torch

from tokenmill.bench.golden import GOLDEN, NEW_TOKENS, check_text, reference_for, token_ids
from tokenmill.errors import WrongText
from tokenmill.hub.names import SHORT_NAMES

REFERENCE = {"one": " ".join(map(str, range(10, 20))), "two": " ".join(map(str, range(30, 40)))}


class Says:
    """An engine that goes on as the reference does, but for the tokens that `wrong` counts at the end of each text."""

    def __init__(self, scheme, wrong, dtype="float32", lead=1.0):
        self.config = SimpleNamespace(scheme=scheme, dtype=dtype)
        self.wrong, self.lead, self.asked = dict(wrong), lead, []

    def tokens(self, prompt):
        right = token_ids(REFERENCE[prompt])
        keep = len(right) - self.wrong.get(prompt, 0)
        return right[:keep] + [0] * (len(right) - keep)

    def generate(self, prompt, **how):
        self.asked.append((prompt, how))
        return SimpleNamespace(tokens=tuple(self.tokens(prompt)), text=f"{prompt} and so on")

    def encode(self, prompt):
        self.prompt = prompt
        return [1, 2, 3]

    def logits(self, ids):
        """Logits of which each position predicts the token that follows; those of the prompt itself say anything."""
        said = token_ids(REFERENCE[self.prompt])[: len(ids) - 3]
        assert ids == [1, 2, 3, *said]
        return self.lead * torch.nn.functional.one_hot(
            torch.tensor([5, 5, *self.tokens(self.prompt)[: len(said) + 1]]), 50
        )


def test_every_reference_is_as_long_as_what_is_generated():
    assert {len(token_ids(text)) for texts in GOLDEN.values() for text in texts.values()} == {NEW_TOKENS} == {32}
    assert token_ids("216 38") == [216, 38]


def test_a_reference_is_for_one_file_alone(tmp_path):
    packaged = SHORT_NAMES["smollm2-135m"]
    file = tmp_path / packaged.file_name
    with file.open("wb") as opened:
        opened.truncate(packaged.num_bytes)
    assert reference_for(file) is GOLDEN["smollm2-135m"]
    with file.open("wb") as opened:
        opened.truncate(packaged.num_bytes - 1)
    assert reference_for(file) is None
    other = file.rename(tmp_path / "other.gguf")
    with other.open("wb") as opened:
        opened.truncate(packaged.num_bytes)
    assert reference_for(other) is None


def test_right_texts():
    engine = Says("dense", {})
    assert check_text(engine, REFERENCE) == "2 texts as transformers'"
    assert engine.asked == [(prompt, {"max_new_tokens": 32, "ignore_eos": True}) for prompt in REFERENCE]


def test_a_wrong_text_is_shown():
    with pytest.raises(WrongText) as wrong:
        check_text(Says("dense", {"two": 1}), REFERENCE)
    assert str(wrong.value) == (
        "1 of 2 texts differ from transformers' texts: 'two' goes on with 'two and so on' …: "
        "figures of a wrong computation are not reported"
    )


def test_in_16_bits_a_tie_may_turn():
    """Where the lead over the right token is less than TIES; in float32 it may not."""
    tie = Says("dense", {"two": 1}, "bfloat16", lead=0.5)
    assert check_text(tie, REFERENCE) == "2 texts as transformers', 1 of them until a tie of bfloat16"
    for dtype, lead in (("bfloat16", 0.51), ("float16", 0.07), ("float32", 0.001)):
        with pytest.raises(WrongText, match="1 of 2 texts differ"):
            check_text(Says("dense", {"two": 1}, dtype, lead), REFERENCE)


def test_schemes_that_round_are_compared_token_by_token():
    """q4 wants 90 of 100: 18 of these 20."""
    assert check_text(Says("q4", {}), REFERENCE).startswith("20 of 20 tokens as transformers' (scheme q4 rounds")
    assert check_text(Says("q4", {"one": 2}), REFERENCE).startswith("18 of 20 tokens")
    with pytest.raises(WrongText, match=r"^17 of 20 tokens as .*: figures of a wrong computation are not reported$"):
        check_text(Says("q4", {"one": 2, "two": 1}), REFERENCE)
