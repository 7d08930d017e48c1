"""Short names that stand for files of the hub: fetched from a hub on this machine, known by their sha256."""

import json
import re
from hashlib import sha256

import pytest
from huggingface_hub import constants

from tests.hub_server import COMMIT, HubServer
from tokenmill.errors import CheckpointError
from tokenmill.hub import first_fetch
from tokenmill.hub.names import locate, nearest
from tokenmill.hub.progress import Progress
from tokenmill.hub.short_names import ALL_NAMES, HUB_NAMES, SHORT_NAMES, HubFile, sampling_of_file
from tokenmill.weights.generation import defaults_of_directory

CONTENT = b"GGUF" + b"weights" * 1000
DIGEST = sha256(CONTENT).hexdigest()
NAME = "owner/tiny:tiny-q8_0.gguf"


class Told(Progress):
    def __init__(self):
        self.stages = []

    def stage(self, text):
        self.stages.append(text)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with HubServer({"owner/tiny": {"tiny-q8_0.gguf": CONTENT, "README.md": b"text"}}) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        template = running.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        yield running


@pytest.fixture
def short(monkeypatch):
    """Gives the short name `tiny` a sha256 and a revision."""

    def make(digest="", revision=None):
        monkeypatch.setitem(HUB_NAMES, "tiny", HubFile("Tiny", "owner/tiny", "tiny-q8_0.gguf", digest, revision))

    return make


def test_the_table_is_sound():
    assert len(ALL_NAMES) >= 20 and len(set(ALL_NAMES)) == len(ALL_NAMES)
    for name, model in HUB_NAMES.items():
        assert re.fullmatch(r"[a-z0-9.-]+", name) and re.fullmatch(r"[\w.-]+/[\w.-]+", model.repository)
        assert model.file.endswith(".gguf") and not name.startswith("ollama")
        assert re.fullmatch(r"([0-9a-f]{64})?", model.sha256), name
        assert model.revision is None or re.fullmatch(r"[0-9a-f]{40}", model.revision), name
    digests = [model.sha256 for model in (*HUB_NAMES.values(), *SHORT_NAMES.values()) if model.sha256]
    assert len(set(digests)) == len(digests)


def test_a_pinned_file_is_fetched_and_checked(server, short):
    short(DIGEST, COMMIT)
    path = locate("tiny")
    assert path.read_bytes() == CONTENT and first_fetch.records()[NAME].sha256 == DIGEST
    assert locate("tiny", offline=True) == path
    assert server.fetched == ["tiny-q8_0.gguf"]


def test_another_sha256_than_the_pinned_one_is_refused(server, short):
    short("0" * 64)
    with pytest.raises(CheckpointError, match="pinned in tokenmill") as error:
        locate("tiny")
    assert DIGEST in str(error.value) and "0" * 64 in str(error.value) and NAME in str(error.value)
    assert locate(NAME).read_bytes() == CONTENT


def test_the_first_fetch_counts_from_then_on(server, short):
    short()
    told = Told()
    path = locate("tiny", progress=told)
    assert "what came now counts from here on" in told.stages[-1] and DIGEST in told.stages[-1]
    assert first_fetch.records()[NAME][:3] == (DIGEST, COMMIT, len(CONTENT))
    again = Told()
    assert locate("tiny", progress=again) == path
    assert not [line for line in again.stages if DIGEST in line]


def test_a_file_that_the_hub_has_changed_is_refused(server, short, tmp_path):
    """The commit of the first fetch is asked for; a hub that gives another file for it is found out too."""
    short()
    path = locate("tiny")
    path.resolve().unlink()
    path.unlink()
    server.repositories["owner/tiny"]["tiny-q8_0.gguf"] = CONTENT + b"other"
    with pytest.raises(CheckpointError, match=r"of its first fetch, \d{4}-\d\d-\d\d"):
        locate("tiny")
    first_fetch.record_file().unlink()
    assert locate("tiny").read_bytes() == CONTENT + b"other"


def test_the_name_of_a_blob_is_not_believed_at_first(server, short):
    """A hub says what a blob's name is; its bytes are computed once, also of a file that is in the cache already."""
    path = locate(NAME)
    path.resolve().write_bytes(CONTENT[:-1] + b"x")
    assert path.resolve().name == DIGEST
    short(DIGEST)
    with pytest.raises(CheckpointError, match="pinned in tokenmill"):
        locate("tiny", offline=True)


def test_a_name_that_is_pinned_later(server, short):
    short()
    locate("tiny")
    short("0" * 64)
    with pytest.raises(CheckpointError, match="pinned in tokenmill"):
        locate("tiny")
    short(DIGEST)
    assert locate("tiny").read_bytes() == CONTENT


def test_a_cache_folder_that_cannot_be_written_is_said(server, short, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "file" / "cache"))
    short(DIGEST)
    told = Told()
    assert locate("tiny", progress=told).read_bytes() == CONTENT
    assert "first-fetches.json cannot be written" in told.stages[-1]


def test_a_cache_without_blobs_is_read(server, short, tmp_path):
    """As on file systems without links: the sha256 is computed."""
    short(DIGEST)
    path = locate("tiny")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert locate("tiny", offline=True) == path
    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(CheckpointError, match="or this one is damaged"):
        locate("tiny", offline=True)


DAMAGED = ["", "{", "[1]", '{"a": 1}', '{"a": ["x", "", 1, ""]}', '{"a": [1, 2]}']
DAMAGED.append(json.dumps({"a": ["0" * 64, "main", 1, ""]}))


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_named(server, short, text):
    short()
    first_fetch.record_file().parent.mkdir(parents=True)
    first_fetch.record_file().write_text(text)
    with pytest.raises(CheckpointError, match="delete it, and the next fetch is a first one again"):
        locate("tiny")


def test_a_record_of_other_names_is_kept(server, short):
    short()
    record = first_fetch.record_file()
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"other": ["1" * 64, COMMIT, 5, "2026-01-02"]}))
    locate("tiny")
    assert set(first_fetch.records()) == {"other", NAME}


def test_no_network_says_what_is_here_and_how_to_get_it_elsewhere(server, short, tmp_path, monkeypatch):
    short(DIGEST, COMMIT)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "other.gguf").write_bytes(CONTENT)
    monkeypatch.setenv("TOKENMILL_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    server.stop()
    with pytest.raises(CheckpointError) as error:
        locate("tiny")
    message = str(error.value)
    assert message.startswith(f"tiny stands for {NAME}, and ") and "the hub was not reached" in message
    assert f"on this machine are {tmp_path / 'models' / 'other.gguf'} (`tokenmill list`)" in message
    assert f"https://huggingface.co/owner/tiny/resolve/{COMMIT}/tiny-q8_0.gguf" in message


def test_a_name_of_the_hub_that_is_nearly_one_that_is_here(server):
    locate(NAME)
    with pytest.raises(CheckpointError, match=re.escape(f"; did you mean {NAME!r}, which is here?")):
        locate("ownr/tiny:tiny-q8_0.gguf", offline=True)
    with pytest.raises(CheckpointError) as error:
        locate("somebody/else", offline=True)
    assert "did you mean" not in str(error.value)


NAMES = ("smollm2-135m", "qwen2.5-0.5b", "Qwen/Qwen3-0.6B", "ollama:llama3.2:1b", "~/models/Tiny-Llama.gguf")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("smolm2-135m", "smollm2-135m"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("qwen2.5-0.5", "qwen2.5-0.5b"),
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("llama3.2:1b", "ollama:llama3.2:1b"),
        ("llama3.2-1b", "ollama:llama3.2:1b"),
        ("tiny-llama.gguf", "~/models/Tiny-Llama.gguf"),
        ("nothing at all", ""),
    ],
)
def test_the_nearest_name(word, meant):
    assert nearest(word, NAMES) == meant


# What the generation_config.json of each model's first repository says of sampling.
FILES = {
    ("smollm3-3b",): {"do_sample": True, "temperature": 0.6, "top_p": 0.95},
    ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-coder-1.5b"): {
        "do_sample": True,
        "repetition_penalty": 1.1,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
    },
    ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"): {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    ("llama3.2-1b", "llama3.2-3b"): {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    ("deepseek-r1-1.5b",): {"do_sample": True, "temperature": 0.6, "top_p": 0.95},
    ("gemma3-1b", "gemma3-270m"): {"do_sample": True, "top_k": 64, "top_p": 0.95},
    ("granite3.3-2b", "falcon3-1b", "olmo2-1b"): {"_from_model_config": True},
}
# The keywords of the call that the model card shows, or its words, where that file says nothing.
CARDS = {
    ("smollm2-135m", "smollm2-360m", "smollm2-1.7b"): {"temperature": 0.2, "top_p": 0.9, "do_sample": True},
    ("tinyllama-1.1b",): {"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.95},
    ("phi3-mini", "phi4-mini"): {"temperature": 0.0, "do_sample": False},
    ("ministral3-3b",): {"do_sample": False},  # "a temperature below 0.1"
}
SAMPLING = [(name, values) for names, values in {**FILES, **CARDS}.items() for name in names]


def test_each_name_has_its_maker_s_sampling_or_says_that_there_is_none():
    assert sorted(name for name, _ in SAMPLING) == sorted(ALL_NAMES)


@pytest.mark.parametrize(("name", "values"), SAMPLING)
def test_a_name_s_sampling_is_what_the_maker_s_words_mean_to_transformers(name, values, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    model = SHORT_NAMES.get(name) or HUB_NAMES[name]
    assert model.sampling == defaults_of_directory(tmp_path)
    in_file = any(name in names for names in FILES)
    assert model.sampling.origin == (
        "" if not model.sampling else f"the maker's {'generation_config.json' if in_file else 'model card'}"
    )
    file = model.file_name if name in SHORT_NAMES else model.file
    assert sampling_of_file(tmp_path / "anywhere" / file) == model.sampling
    assert sampling_of_file(tmp_path / "another.gguf") == {}
