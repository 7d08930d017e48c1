"""What a type checker reads of the public methods is what they return; the public names are there."""

import inspect
from typing import TYPE_CHECKING, assert_type, get_overloads

import pytest

import tokenmill
from tokenmill import Completion, Engine, SamplingParams

NAMES = (
    "DeadlinePassed",
    "PackageMismatch",
    "PackedModelError",
    "Request",
    "Score",
    "Stream",
    "Timing",
    "TokenLogprobs",
)

if TYPE_CHECKING:  # mypy reads this; nothing runs it

    def check(engine: Engine, number: int, params: SamplingParams) -> None:
        assert_type(engine.generate("a"), Completion)
        assert_type(engine.generate([1], n=1), Completion)
        assert_type(engine.generate("a", n=2), list[Completion])
        assert_type(engine.generate("a", n=number), Completion | list[Completion])
        assert_type(engine.generate("a", params), Completion | list[Completion])
        assert_type(engine.generate("a", params, n=1), Completion)
        assert_type(engine.generate(["a", "b"], n=2), list[Completion])
        assert_type(engine.chat([], n=2), list[Completion])


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_there(name):
    assert name in tokenmill.__all__ and inspect.isclass(getattr(tokenmill, name))
    assert getattr(tokenmill, name).__name__ == name


def test_several_continuations_are_a_list(llama):
    engine = tokenmill.load(llama, dtype="float32", max_length=32)
    assert isinstance(engine.generate([1, 2], max_new_tokens=2, n=2), list)
    assert isinstance(engine.generate([1, 2], SamplingParams(max_new_tokens=2, n=2)), list)
    assert isinstance(engine.generate([1, 2], SamplingParams(max_new_tokens=2, n=2), n=1), Completion)
    assert len(get_overloads(Engine.generate)) == 5
