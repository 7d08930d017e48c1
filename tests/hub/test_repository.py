"""Which files of a repository are taken, and what each error of the hub's client becomes. Nothing is served here."""

from hashlib import sha256
from itertools import pairwise
from types import SimpleNamespace

import pytest
from huggingface_hub import errors

from tests.calibrate.told import Told
from tokenmill.errors import CheckpointError
from tokenmill.hub import repository
from tokenmill.hub.repository import Repository

COMMIT = "c" * 40


class Hub:
    """Replaces the hub's client.

    files: {name: content}. fails: what the listing raises. breaks: what a download raises. here: names in the cache.
    lies: files of which the listing gives another sha256.
    """

    def __init__(self, folder):
        self.folder, self.files, self.fails, self.here, self.bar, self.asked = folder, {}, None, set(), None, []
        self.lies, self.breaks = set(), None

    def model_info(self, name, revision, files_metadata):
        self.asked.append((name, revision))
        if self.fails is not None:
            raise self.fails
        siblings = [
            SimpleNamespace(rfilename=name, lfs=SimpleNamespace(sha256=self.digest(name)) if files_metadata else None)
            for name in self.files
        ]
        return SimpleNamespace(siblings=siblings, sha=COMMIT)

    def digest(self, name):
        return "0" * 64 if name in self.lies else sha256(self.files[name]).hexdigest()

    def try_to_load_from_cache(self, name, file, revision):
        assert revision == COMMIT
        return "path" if file in self.here else None

    def hf_hub_download(self, name, file, revision, tqdm_class):
        if self.breaks is not None:
            raise self.breaks
        self.bar = tqdm_class
        (self.folder / file).write_bytes(self.files[file])
        return str(self.folder / file)

    def snapshot_download(self, name, revision, local_files_only):
        assert local_files_only
        if not self.here:
            raise errors.LocalEntryNotFoundError("none")
        for file in self.here:
            (self.folder / file).parent.mkdir(exist_ok=True)
            (self.folder / file).write_bytes(b"here")
        return str(self.folder)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "snapshot").mkdir()
    hub = Hub(tmp_path / "snapshot")
    monkeypatch.setattr(repository, "HfApi", lambda: hub)
    for name in ("try_to_load_from_cache", "hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(repository, name, getattr(hub, name))
    monkeypatch.setattr(repository, "get_token", lambda: None)
    monkeypatch.setattr(repository.constants, "HF_HUB_OFFLINE", False)
    return hub


def fetch(gguf=None, told=None, offline=False, revision=None):
    return Repository("owner/name", revision, offline, told or Told()).fetch(gguf)


def refused(*given, **more):
    with pytest.raises(CheckpointError) as error:
        fetch(*given, **more)
    return str(error.value)


MODEL = {"model.safetensors": b"weights", "config.json": b"{}", "tokenizer.json": b"{ }", "README.md": b"text"}


def test_the_stages_of_a_pull(hub):
    hub.files, hub.here = MODEL, {"config.json"}
    told = Told()
    assert fetch(told=told, revision="v1") == hub.folder
    assert hub.asked == [("owner/name", "v1")]
    assert told.stages == [
        "asking the hub for owner/name",
        "1/3 config.json: here already",
        "2/3 tokenizer.json",
        "3/3 model.safetensors",
    ]
    assert sorted(path.name for path in hub.folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("present", "taken"),
    [
        (["config.json", "model.safetensors", "x.gguf"], ["config.json", "model.safetensors"]),
        (["config.json", "x.gguf"], ["x.gguf"]),
        (["model.safetensors", "x.gguf"], ["x.gguf"]),
        (["config.json", "sub-model.json", "model.safetensors", "model.safetensors.index.json", "merges.txt"],
         ["config.json", "merges.txt", "sub-model.json", "model.safetensors"]),
        (["config.json", "model-1.safetensors", "model.safetensors.index.json", "z.jinja"],
         ["config.json", "model.safetensors.index.json", "z.jinja", "model-1.safetensors"]),
        (["config.json", "pytorch_model.bin", "vocab.txt", "tokenizer.model", "x.py", "notes.txt"],
         ["config.json", "tokenizer.model", "vocab.txt", "pytorch_model.bin"]),
    ],
)  # fmt: skip
def test_what_is_taken(hub, present, taken):
    hub.files = dict.fromkeys(present, b"x")
    told = Told()
    path = fetch(told=told)
    assert [line.split()[1] for line in told.stages[1:]] == taken
    assert path == (hub.folder / "x.gguf" if taken == ["x.gguf"] else hub.folder)


@pytest.mark.parametrize(
    ("present", "gguf", "message"),
    [
        (
            ["README.md"],
            None,
            "owner/name is no model that can be read: it needs a config.json with weights, or a .gguf",
        ),
        (["a.gguf", "b.gguf"], None, "owner/name has several models: give one as owner/name:FILE, of a.gguf, b.gguf"),
        (["a.gguf", "b.gguf"], "c", "owner/name has no file 'c': it has a.gguf, b.gguf"),
        (["x-a.gguf", "x-b.gguf", "y.gguf"], "x", "owner/name has several files 'x': it has x-a.gguf, x-b.gguf"),
        (["config.json"], "x", "owner/name has no file 'x': it has no .gguf file at all"),
    ],
)
def test_what_is_refused(hub, present, gguf, message):
    hub.files = dict.fromkeys(present, b"x")
    assert refused(gguf) == message


@pytest.mark.parametrize(
    ("asked", "taken"), [("q4_k", "m-Q4_K.gguf"), ("Q4_K_M", "m-Q4_K_M.gguf"), ("m-Q4_K.gguf", "m-Q4_K.gguf")]
)
def test_a_quantisation_is_a_word_of_the_name(hub, asked, taken):
    hub.files = dict.fromkeys(["m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-IQ4_K_M2.gguf"], b"x")
    assert fetch(asked) == hub.folder / taken


def test_a_wrong_file_goes_with_what_its_link_leads_to(hub, tmp_path, monkeypatch):
    """The client's cache has a link in the snapshot, and the content elsewhere."""
    hub.files, hub.lies = {"m.gguf": b"changed"}, {"m.gguf"}
    blob = tmp_path / "blob"

    def download(*_, **__):
        blob.write_bytes(b"changed")
        (hub.folder / "m.gguf").symlink_to(blob)
        return str(hub.folder / "m.gguf")

    monkeypatch.setattr(repository, "hf_hub_download", download)
    assert refused() == f"owner/name: m.gguf has not the sha256 {'0' * 64}: deleted; run it again"
    assert not blob.exists() and not (hub.folder / "m.gguf").is_symlink()


def test_a_wrong_file_that_is_no_link_is_deleted(hub):
    hub.files, hub.lies = {"m.gguf": b"changed"}, {"m.gguf"}
    assert "deleted; run it again" in refused()
    assert list(hub.folder.iterdir()) == []


def test_a_file_that_was_here_is_not_checked_again(hub):
    hub.files, hub.lies, hub.here = {"m.gguf": b"changed"}, {"m.gguf"}, {"m.gguf"}
    assert fetch() == hub.folder / "m.gguf"


def test_a_pull_that_breaks_off_says_to_run_it_again(hub):
    hub.files, hub.breaks = MODEL, OSError("cable cut")
    why = "the hub was not reached (cable cut)"
    assert refused() == f"owner/name: config.json was not fetched: {why}; run it again"


def test_the_bar_passes_on_what_it_is_told_and_shows_nothing(hub, capsys):
    hub.files = {"m.gguf": b"x"}
    told = Told()
    fetch(told=told)
    bar = hub.bar(total=10, disable=False)
    bar.update(3)
    bar.update()
    bar.update(None)
    bar.update(0)
    unknown = hub.bar(total=None)
    unknown.update(5)
    assert told.counts == [(3, 10), (4, 10), (4, 10), (4, 10), (5, 5)]
    assert capsys.readouterr().err == ""


# ---- without the hub


def test_offline_the_cache_is_looked_at_alone(hub):
    hub.here = {"m.gguf"}
    told = Told()
    assert fetch(offline=True, told=told) == hub.folder / "m.gguf"
    assert told.stages == hub.asked == []


def test_a_hub_that_is_not_reached_leaves_the_cache(hub):
    hub.fails, hub.here = OSError("no route"), set(MODEL)
    told = Told()
    assert fetch(told=told) == hub.folder
    why = "the hub was not reached (no route)"
    assert told.stages == ["asking the hub for owner/name", f"{why}: looking in the hub's cache on this machine"]


def test_a_file_in_a_folder_of_the_cache_is_named_by_its_path(hub):
    hub.here = {"q/m-Q4_K_M.gguf", "q/m-Q8_0.gguf"}
    assert fetch("q/m-Q8_0.gguf", offline=True) == hub.folder / "q" / "m-Q8_0.gguf"


def test_what_is_nowhere_says_why(hub):
    begin = (
        "owner/name is neither a directory here nor in the hub's cache, and offline or HF_HUB_OFFLINE forbids asking"
    )
    assert refused(offline=True) == f"{begin} the hub: nothing of it was fetched before"
    hub.here = {"README.md"}
    none = "owner/name is no model that can be read: it needs a config.json with weights, or a .gguf"
    assert refused(offline=True) == f"{begin} the hub: {none}"


# ---- what the client raises


def answered(kind, status):
    """The error that the client raises for such an answer, whichever HTTP library its version is built on."""
    return kind("said", response=SimpleNamespace(status_code=status, headers={}, request=None))


NO_NAME = (
    "no model 'owner/name': there is no such directory, and the hub knows no such name, or it is private and HF_TOKEN "
    "is not set"
)
TOKEN = (
    "owner/name: the hub does not accept the token (401): HF_TOKEN, or the token of `hf auth login`, is wrong or has "
    "expired"
)


@pytest.mark.parametrize(
    ("raised", "token", "message"),
    [
        ((errors.GatedRepoError, 403), None, "owner/name is gated: accept its terms on the hub and set HF_TOKEN"),
        ((errors.RepositoryNotFoundError, 404), "hf_x", NO_NAME),
        ((errors.RepositoryNotFoundError, 401), None, NO_NAME),
        ((errors.RepositoryNotFoundError, 401), "hf_x", TOKEN),
        ((errors.RevisionNotFoundError, 404), None, "owner/name has no revision 'v9': a branch, tag or commit"),
        ((errors.HfHubHTTPError, 401), None, TOKEN),
        (
            (errors.HfHubHTTPError, 403),
            None,
            "owner/name: the hub forbids it (403): the token of HF_TOKEN may not read this repository",
        ),
    ],
)
def test_a_refusal_is_not_looked_for_in_the_cache(hub, monkeypatch, raised, token, message):
    monkeypatch.setattr(repository, "get_token", lambda: token)
    hub.fails, hub.here = answered(*raised), set(MODEL)
    assert refused(revision="v9") == message


def test_a_name_that_the_client_itself_refuses_has_no_response(hub):
    hub.fails = answered(errors.RepositoryNotFoundError, 401)
    hub.fails.response = None
    assert refused() == NO_NAME


def chained(*all_of_them, by):
    """The first of these errors, which was raised for the next, and so on."""
    for outer, inner in pairwise(all_of_them):
        setattr(outer, by, inner)
    return all_of_them[0]


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        (answered(errors.HfHubHTTPError, 429), "the hub allows no more requests for now (429); wait, or set HF_TOKEN"),
        (answered(errors.HfHubHTTPError, 430), "the hub answered with status 430"),
        (answered(errors.HfHubHTTPError, 402), "the hub answered with status 402"),
        (OSError("two\n lines"), "the hub was not reached (two lines)"),
        (OSError("x" * 201), f"the hub was not reached ({'x' * 200})"),
        (OSError(), "the hub was not reached (OSError)"),
        (chained(OSError("a"), OSError("b"), OSError("c"), by="__cause__"), "the hub was not reached (c)"),
        (chained(OSError("a"), OSError("b"), OSError("c"), by="__context__"), "the hub was not reached (c)"),
    ],
)
def test_why_the_hub_gave_nothing(hub, raised, why):
    hub.fails = raised
    begin = f"owner/name is neither a directory here nor in the hub's cache, and {why}: "
    assert refused() == f"{begin}nothing of it was fetched before"
