"""Names of Ollama and the paths of their manifests, as its `types/model/name.go` and `manifest/paths.go` have them."""

from pathlib import Path

import pytest

from tests.disk_of_models import manifest
from tokenmill.errors import CheckpointError
from tokenmill.hub.names import locate
from tokenmill.hub.places import ollama
from tokenmill.hub.places.ollama import manifest_of, name_of

NAMES = {
    "llama3.2": "registry.ollama.ai/library/llama3.2/latest",
    "llama3.2:1b": "registry.ollama.ai/library/llama3.2/1b",
    "somebody/model": "registry.ollama.ai/somebody/model/latest",
    "somebody/model:7b-q4_K_M": "registry.ollama.ai/somebody/model/7b-q4_K_M",
    "hf.co/owner/name:Q4_K_M": "hf.co/owner/name/Q4_K_M",
    "host:5000/owner/name:tag": "host:5000/owner/name/tag",
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(ollama, "SYSTEM", (tmp_path / "system",))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.mark.parametrize("name", NAMES)
def test_the_manifest_of_a_name_and_the_name_of_a_manifest(name):
    assert manifest_of(name) == Path(NAMES[name])
    shown = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    assert name_of(Path(NAMES[name])) == shown


@pytest.mark.parametrize("name", ["", ":", "../x", "a/../b", "a:..", "a:."])
def test_what_is_no_name_is_refused(store, name):
    with pytest.raises(CheckpointError, match="is no name of Ollama"):
        locate(f"ollama:{name}")


def test_a_name_that_the_store_lacks_tells_what_it_has(store):
    with pytest.raises(CheckpointError, match="`ollama pull nothing` fetches it"):
        locate("ollama:nothing")
    manifest(store, "registry.ollama.ai/library/tiny/latest", ("model", b"GGUF"))
    with pytest.raises(
        CheckpointError, match=r"Ollama has no model 'tinny' here \(.*models\); it has ollama:tiny:latest"
    ):
        locate("ollama:tinny")
    assert locate("ollama:tiny").read_bytes() == b"GGUF"


def test_a_name_that_is_too_long_is_refused_in_a_line(store):
    (store / "manifests" / "registry.ollama.ai" / "library").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"File name too long|has no model"):  # by the version of Python
        locate("ollama:" + "x" * 300)


def test_the_users_store_is_asked_before_that_of_the_system(store, tmp_path):
    for place, content in ((store, b"GGUF of the user"), (tmp_path / "system", b"GGUF of the system")):
        manifest(place, "registry.ollama.ai/library/tiny/latest", ("model", content))
    assert locate("ollama:tiny").read_bytes() == b"GGUF of the user"


def test_without_a_store(tmp_path, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(ollama, "SYSTEM", ())
    assert list(ollama.all_entries()) == []
    with pytest.raises(CheckpointError, match="no store of Ollama"):
        locate("ollama:tiny")
