"""llama.cpp's vocabularies and their vectors, out of the source archive of llama-cpp-python (`make test-long`)."""

import subprocess
import sys
import tarfile

import pytest

from tokenmill.errors import CheckpointError
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.gguf.header import read_header

ARCHIVE = "llama-cpp-python==0.3.36"
REFUSED = {"bert-bge": "bert", "nomic-bert-moe": "t5", "gemma-4": "gemma4"}
"""Vocabularies of a kind that no architecture here has: WordPiece, Unigram, and BPE over characters."""
WITHOUT_VECTORS = {"aquila", "baichuan", "gpt-neox"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder models/ of the archive, fetched by pip."""
    path = tmp_path_factory.mktemp("llama-cpp")
    command = [sys.executable, "-m", "pip", "download", "--no-binary", "llama-cpp-python", "--no-deps", "-d", str(path)]
    subprocess.run([*command, ARCHIVE], check=True, capture_output=True)
    (archive,) = path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        wanted = [each for each in packed.getmembers() if "/models/ggml-vocab-" in each.name]
        packed.extractall(path, wanted, filter="data")
    return next(path.glob("*/vendor/llama.cpp/models"))


@pytest.mark.long
def test_every_vocabulary_gives_llama_cpps_ids(folder):
    compared = 0
    for file in sorted(folder.glob("ggml-vocab-*.gguf")):
        name, metadata = file.stem.removeprefix("ggml-vocab-"), read_header(file).metadata
        if name in REFUSED:
            with pytest.raises(CheckpointError, match=f"tokenizer.ggml.model = '{REFUSED[name]}'"):
                tokenizer_from_gguf(metadata)
            continue
        tokenizer = tokenizer_from_gguf(metadata)
        if name in WITHOUT_VECTORS:
            continue
        texts = (file.parent / f"{file.name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        lines = (file.parent / f"{file.name}.out").read_text(encoding="utf-8").split("\n")
        for text, line in zip(texts, lines, strict=True):
            assert tokenizer.encode(text, add_special_tokens=False) == list(map(int, line.split())), (name, text)
        compared += 1
    assert compared == 13
