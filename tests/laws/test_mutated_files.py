"""Whatever a file holds, opening and using it ends in a text or in an error of ours, soon, and in bounded memory. A
config that is taken means what it means to transformers.

The default run tries two hundred mutations. TOKENMILL_MUTATIONS=6000 tries so many of each kind of file, from
TOKENMILL_MUTATIONS_FROM on, so that several processes can share the numbers. The config.json of every family is mutated
by `make test-long`.
"""

import os
from random import Random

import pytest
import torch
import transformers

from tests.mutations import CASES, Case, outcome
from tests.tiny_models import auto_class, prompt
from tokenmill import TokenmillError, load
from tokenmill.kernels.native_library import why_not

COUNT = int(os.environ.get("TOKENMILL_MUTATIONS", "20"))
FIRST = int(os.environ.get("TOKENMILL_MUTATIONS_FROM", "0"))

pytestmark = pytest.mark.skipif(why_not() is not None, reason="packed models and half of the runs are native")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutations")


KINDS = [pytest.param(kind, marks=pytest.mark.long) if "every" in kind else kind for kind in CASES]


@pytest.mark.parametrize("kind", KINDS)
def test_no_mutated_file_does_harm(kind, folder):
    ends = [outcome(kind, number, folder) for number in range(FIRST, FIRST + COUNT)]
    assert max(map(len, ends)) < 20_000, "a message is no copy of the file"
    assert any(end.startswith("refused") for end in ends)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_good_before_they_are_mutated(kind, folder):
    for case in CASES[kind]:
        if isinstance(case, Case):
            Case(case.make, case.file, lambda _, data: data).run(folder, Random(0))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in CASES if kind.startswith("config")])
def test_a_config_that_is_taken_means_what_it_means_to_transformers(kind, folder):
    """transformers refuses more: the types of keys that change nothing, and 2.0 in the place of 2."""
    equal = 0
    for number in range(FIRST, FIRST + COUNT):
        path = CASES[kind][number % len(CASES[kind])].write(folder, Random(f"{kind} {number}"))
        try:
            engine = load(path, program="eager", dtype="float32", max_length=48, threads=1)
        except TokenmillError:
            continue
        tokens = [token % engine.model_config.vocab_size for token in prompt(20)]
        theirs = logits_of_transformers(path, tokens)
        if theirs is not None:
            bound = 1e-3 * theirs.abs().max().item()
            torch.testing.assert_close(engine.logits(tokens), theirs, rtol=0, atol=bound, msg=f"{kind} {number}")
            equal += 1
    assert equal


def logits_of_transformers(path, tokens):
    """None where transformers refuses the config, in whatever way."""
    try:
        config = transformers.AutoConfig.from_pretrained(path)
        model = auto_class(config).from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    except Exception:  # noqa: BLE001 - a key, a type, an index, an overflow: whatever its libraries raise
        return None
