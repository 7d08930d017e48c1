"""What a type checker reads of the public methods is what they return, the same for every n."""

from typing import TYPE_CHECKING, assert_type

import pytest

import tokenmill
from tokenmill import Completion, Engine, SamplingParams

if TYPE_CHECKING:  # mypy reads this; nothing runs it

    def check(engine: Engine, number: int, params: SamplingParams) -> None:
        assert_type(engine.generate("a"), Completion)
        assert_type(engine.generate([1], params, n=number), Completion)
        assert_type(engine.generate(["a", "b"], n=2), list[Completion])
        assert_type(engine.generate([[1], [2]], params), list[Completion])
        assert_type(engine.chat([], n=number), Completion)


@pytest.fixture(scope="module")
def engine(llama):
    return tokenmill.load(llama, dtype="float32", max_length=32)


@pytest.mark.parametrize("n", [1, 3])
def test_one_prompt_gives_one_completion_with_all_n(engine, n):
    settings = {"max_new_tokens": 2, "seed": 5, "temperature": 1.0}
    done = engine.generate([1, 2], n=n, **settings)
    singles = [engine.generate([1, 2], **{**settings, "seed": 5 + number}) for number in range(n)]
    assert done.completions[0] is done and len(done.completions) == n
    assert [each.tokens for each in done.completions] == [each.tokens for each in singles]
    assert done.texts == tuple(each.text for each in done.completions)
    assert all(other.completions == (other,) for other in done.others)


def test_a_list_of_prompts_gives_a_list(engine):
    params = SamplingParams(max_new_tokens=2, n=2)
    for prompts in ([[1, 2], [3]], [[1, 2]], []):
        done = engine.generate(prompts, params)
        assert [len(each.completions) for each in done] == [2] * len(prompts)
        assert [each.num_prompt_tokens for each in done] == [len(each) for each in prompts]
    assert engine.generate([1, 2], params, n=1).others == ()
