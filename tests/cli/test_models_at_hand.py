"""`tokenmill list` and `rm` over a made-up disk with models of all origins; what is left is compared byte by byte."""

import io
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest

from tests import disk_of_models
from tests.disk_of_models import COMMIT, OLDER, contents, repository
from tests.tiny_encoders import save_encoder
from tests.word_model import save_chat_model
from tokenmill.cli import remove
from tokenmill.hub.names import locate
from tokenmill.hub.places import folders
from tokenmill.hub.places.here import entries_here, names_here
from tokenmill.hub.short_names import SHORT_NAMES
from tokenmill.loader.at_hand.facts import facts_of


@pytest.fixture
def disk(tmp_path, made, monkeypatch):
    return disk_of_models.make(tmp_path, made, monkeypatch)


@pytest.fixture
def listed(disk, tm):
    code, out, _ = tm("list", "--json")
    assert code == 0
    return json.loads(out)


def test_every_model_is_listed_with_its_origin(disk, listed):
    found = {model["name"]: model["origin"] for model in listed["models"]}
    assert found == disk.models
    assert len(found) + len(listed["others"]) >= 30


def test_what_is_no_model_is_told_with_its_reason(disk, listed):
    found = {entry["name"]: entry["problem"] for entry in listed["others"]}
    assert found.keys() == disk.problems.keys()
    for name, words in disk.problems.items():
        assert words in found[name], name


def test_adapters_are_listed_as_adapters(disk, listed, tm):
    """PEFT's directories and llama.cpp's files: what they are, their rank and base; a broken one with its reason."""
    found = {adapter["name"]: adapter for adapter in listed["adapters"]}
    assert {name: adapter["origin"] for name, adapter in found.items()} == disk.adapters
    peft, file, half = found["one/french"], *(found[str(disk.given / name)] for name in ("lora.gguf", "half.gguf"))
    assert (peft["format"], peft["rank"], peft["base"], peft["problem"]) == ("PEFT", 2, "one/tiny", None)
    assert (file["format"], file["rank"], file["base"]) == ("GGUF for llama", 4, "Tiny Llama")
    assert "is not whole" in half["problem"] and "blk.0.attn_q (b)" in half["problem"]
    assert (Path(peft["path"]) / "adapter_config.json").is_file()
    said = tm("list")[1]
    assert "5 adapters, " in said and f"adapter {disk.given / 'half.gguf'} cannot be loaded: " in said


def test_rm_of_an_adapter(disk, tm):
    """Of the hub's cache by its name; of a folder the command is told."""
    wanted = below(disk, disk.hub / "models--one--french")
    assert removed(disk, tm, "one/french", "--yes") == wanted
    assert f"`rm -r {disk.given / 'french'}` does" in refused(disk, tm, str(disk.given / "french"))


def test_no_directory_of_an_adapter_is_proposed_as_a_model(disk):
    """Of a file its header would tell, which is not read for a message."""
    proposed = set(disk.adapters) & set(names_here())
    assert all(name.endswith(".gguf") for name in proposed)


def test_family_form_and_what_runs(disk, listed):
    models = {model["name"]: model for model in listed["models"]}
    tiny, coded, old = models["one/tiny"], models["ollama:tiny:latest"], models["ollama:old:1b"]
    assert (tiny["family"], tiny["form"], tiny["context"]) == ("llama", "float32", 128)
    assert (coded["family"], coded["form"]) == ("qwen2", "Q8_0") and coded["runs"] and coded["why_not"] is None
    assert (old["family"], old["runs"]) == ("mamba", None) and "mamba" in old["why_not"]
    assert tiny["kind"] == coded["kind"] == "base"  # neither has a chat template
    damaged = models[str(disk.given / "damaged.gguf")]
    assert damaged["runs"] is None and "damaged or cut short" in damaged["why_not"]
    assert models["linked"]["note"].startswith("is a link to")


def test_names_are_what_a_load_takes(disk, listed):
    """Each stands for the files that the list has for it; names of the hub without asking it."""
    for model in listed["models"]:
        path = locate(model["name"], offline=True)
        assert path.resolve() == Path(model["path"]).resolve(), model["name"]


def test_two_forms_of_a_model_are_seen_and_so_are_the_same_bytes(disk, listed):
    """Each is paired with the first of its kind."""
    same = {frozenset((pair["first"], pair["second"])): pair["is_same"] for pair in listed["same"]}
    first = str(Path("~", "cache", "mine.gguf"))
    assert same[frozenset((first, "~/.lmstudio/models/one/tiny/Tiny-Llama-F32.gguf"))] is True
    assert same[frozenset((first, str(disk.given / "Tiny-Llama-F16.gguf")))] is False
    for other in ("one/tiny", str(disk.given / "deep" / "directory")):
        assert same[frozenset(("one/moved", other))] is True
    # Links to one file are no copies, nor are other models of the same size.
    assert frozenset(("ollama:tiny:latest", "ollama:somebody/tiny:1b")) not in same
    assert not [pair for pair in same if any("mamba" in name for name in pair)]


def test_nothing_is_changed_by_a_list(disk, tm):
    """But for the headers in the cache folder, which are kept of files that have not changed for a while."""
    before = contents(disk.root)
    for arguments in (("--cache",), ("--json", "--dir", disk.root)):
        assert tm("list", *arguments)[0] == 0
    kept = {"home/cache/headers.json"}
    found = contents(disk.root)
    assert {name: found[name] for name in found.keys() - kept} == {name: before[name] for name in before.keys() - kept}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_fits_and_names_are_whole(disk, tm, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda _: True)
    code, out, _ = tm("list")
    table = [line for line in out.splitlines() if line.startswith(" ")]
    assert code == 0 and max(map(len, table)) <= columns
    assert any("ollama:hf.co/one/files:Q8_0" in line for line in table)
    assert any(line.startswith("no model: ollama:broken:latest (Ollama) has a manifest") for line in out.splitlines())


def test_folders_that_cannot_be_read_are_told(disk, tm, monkeypatch):
    """As root there are no such folders, so the system's refusal is made up."""
    refused = {disk.given / "deep", disk.store / "manifests", disk.hub}
    listing = Path.iterdir

    def iterdir(path):
        if path in refused:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    entries = [entry for entry in entries_here() if entry.problem == "cannot be read: Permission denied"]
    assert {entry.name for entry in entries} == {str(disk.given / "deep"), str(disk.store), str(disk.hub)}


def test_a_folder_that_is_given_and_is_not_there(disk, tm):
    _, out, _ = tm("list", "--dir", disk.root / "nowhere", "--json")
    assert {"name": str(disk.root / "nowhere"), "problem": "is no folder that there is"}.items() <= json.loads(out)[
        "others"
    ][-1].items()


def test_deep_folders_end_somewhere(disk):
    deep = disk.root / "deep"
    (deep / "/".join("abcdefghijkl")).mkdir(parents=True)
    assert list(folders.entries_below("folder", deep)) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipes_are_not_waited_for(disk):
    library = disk.store / "manifests" / "registry.ollama.ai" / "library" / "pipe"
    library.mkdir()
    for path in (library / "latest", disk.store / "blobs" / f"sha256-{'7' * 64}", disk.given / "pipe.gguf"):
        os.mkfifo(path)
    names = {entry.name: entry.problem for entry in entries_here()}
    assert names["ollama:pipe:latest"].endswith("it is no regular file")
    assert not facts_of(disk.given / "pipe.gguf").runs


def test_control_codes_in_names_do_nothing_on_a_terminal(disk, tm, monkeypatch):
    (disk.given / "a\x1b[2Jb.gguf").symlink_to("nothing")
    (disk.given / "c\x1b[2Jd.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda _: True)
    code, out, _ = tm("list")
    assert code == 0 and "\x1b[2J" not in out and "a␛[2Jb.gguf" in out


# ---- rm


def removed(disk, tm, *arguments):
    """What `rm` deletes, as paths of the disk; nothing else may have changed."""
    before = contents(disk.root)
    code, _, err = tm("rm", *arguments)
    assert code == 0, err
    after = contents(disk.root)
    assert {path: before[path] for path in after} == after
    return sorted(before.keys() - after.keys())


def below(disk, folder):
    root = folder.relative_to(disk.root).as_posix()
    return sorted(path for path in contents(disk.root) if path == root or path.startswith(f"{root}/"))


def test_rm_of_a_model_that_was_fetched(disk, tm):
    assert removed(disk, tm, "whole", "--yes") == ["home/cache/whole.gguf"]


def test_rm_of_a_repository(disk, tm):
    wanted = below(disk, disk.hub / "models--one--tiny")
    assert len(wanted) > 5
    assert removed(disk, tm, "one/tiny", "--yes") == wanted


def test_rm_of_one_file_of_a_repository(disk, tm, made):
    from hashlib import sha256

    folder = "home/hub/models--one--files"
    blob = sha256(made.qwen.read_bytes()).hexdigest()
    wanted = [f"{folder}/blobs/{blob}", f"{folder}/snapshots/{COMMIT}/a-q8_0.gguf"]
    assert removed(disk, tm, "one/files:a-q8_0.gguf", "--yes") == wanted
    assert len(removed(disk, tm, "one/files:a-f32.gguf", "--yes")) == 2
    assert removed(disk, tm, "one/files", "--yes")[0] == folder  # what is left, as README.md


def test_rm_of_one_revision_leaves_the_blobs_of_the_other(disk, tm):
    gone = removed(disk, tm, f"one/moved/tree/{OLDER}", "--yes")
    assert all(OLDER in path or "/blobs/" in path for path in gone)
    assert sum("/blobs/" in path for path in gone) == 1  # extra.json
    assert locate("one/moved", offline=True).is_dir()


def test_rm_of_a_repository_takes_all_of_its_revisions(disk, tm):
    wanted = below(disk, disk.hub / "models--one--moved")
    assert removed(disk, tm, "one/moved", "--yes") == wanted


def test_rm_of_a_repository_takes_a_link_and_not_its_target(disk, tm):
    wanted = below(disk, disk.hub / "models--one--outside")
    assert removed(disk, tm, "one/outside", "--yes") == wanted
    assert (disk.root / "elsewhere.gguf").is_file()


def test_a_commit_of_two_repositories_is_deleted_of_one(disk, tm):
    """All repositories here have a snapshot of the same commit."""
    for name in ("two/tiny", "one/tiny"):
        assert all(f"models--{name.replace('/', '--')}" in path for path in removed(disk, tm, name, "--yes"))


REFUSED = {
    "ollama:tiny:latest": "belongs to Ollama, and tokenmill does not delete it; `ollama rm tiny:latest` does",
    "ollama:broken:latest": "`ollama rm broken:latest` does",
    "~/.lmstudio/models/one/tiny/Tiny-Llama-F32.gguf": "belongs to LM Studio",
    "~/.cache/llama.cpp/one_tiny_q8_0.gguf": "belongs to llama.cpp",
    "{given}/Tiny-Llama-F16.gguf": "lies in a folder of yours",
    "{given}/deep/directory": "`rm -r {given}/deep/directory` does",
    "~/cache/mine.gguf": "which has not fetched it",
    "cut": "bytes, and has",
    "linked": "is a link to",
    "one/outside:z.gguf": "has a link to ",
    "one/dangling": "is damaged in the hub's cache",
    "tiny": "is ambiguous: one/tiny (in ",
    "nothing": "is no model on this machine",
    "smol": "is no model on this machine",
    "one/tinny": "did you mean 'one/tiny'?",
    "whle": "did you mean 'whole'?",
}


def test_rm_refuses_and_changes_nothing(disk, tm):
    before = contents(disk.root)
    for name, words in REFUSED.items():
        code, out, err = tm("rm", name.format(given=disk.given), "--yes")
        assert (code, out) == (2, "") and "Traceback" not in err, name
        assert words.format(given=disk.given) in err.splitlines()[-1], name
    assert contents(disk.root) == before


def test_an_ambiguous_name_lists_both(disk, tm):
    _, _, err = tm("rm", "tiny", "--yes")
    assert "one/tiny (in " in err and "two/tiny (in " in err


def test_one_refusal_refuses_all(disk, tm):
    before = contents(disk.root)
    assert tm("rm", "whole", "one/tiny", "nothing", "--yes")[0] == 2
    assert contents(disk.root) == before


def test_a_file_with_the_name_of_a_fetched_one_and_other_bytes_is_left(disk, tm):
    path = disk.home / "cache" / "whole.gguf"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, _, err = tm("rm", "whole", "--yes")
    assert code == 2 and "has sha256" in err and path.is_file()


def test_a_dry_run_deletes_nothing_and_says_what_would_go(disk, tm):
    before = contents(disk.root)
    code, out, err = tm("rm", "whole", "one/tiny", "--dry-run", "--json")
    assert code == 0 and contents(disk.root) == before
    document = json.loads(out)
    assert document["would_delete"] == [
        str(disk.home / "cache" / "whole.gguf"),
        str(disk.hub.resolve() / "models--one--tiny"),
    ]
    assert "whole: " in err and "one/tiny: " in err


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2), ("", 130)])
def test_it_asks_first(disk, tm, monkeypatch, typed, code):
    stdin = io.StringIO(typed)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    found, _, err = tm("rm", "whole")
    assert found == code and "delete " in err
    assert (disk.home / "cache" / "whole.gguf").exists() == (code != 0)


def test_without_anybody_to_ask_nothing_goes(disk, tm, piped):
    piped(b"y\n")
    code, _, err = tm("rm", "whole")
    assert code == 2 and "--yes deletes without a question" in err and (disk.home / "cache" / "whole.gguf").is_file()


def test_a_fetched_model_that_is_being_fetched_again_stays(disk, tm):
    import fcntl

    with (disk.home / "cache" / ".whole.gguf.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, err = tm("rm", "whole", "--yes")
    assert code == 2 and "is being fetched by another process" in err and (disk.home / "cache" / "whole.gguf").is_file()


def test_what_cannot_be_deleted_is_said(disk, tm, monkeypatch):
    """The client logs what it cannot delete, and goes on."""
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    code, _, err = tm("rm", "one/tiny", "--yes")
    assert code == 2 and "could not be deleted" in err


def test_old_clients_delete_whole_snapshots_alone(disk, tm, monkeypatch):
    monkeypatch.delattr(huggingface_hub.HFCacheInfo, "delete_files", raising=False)
    code, _, err = tm("rm", "one/files:a-q8_0.gguf", "--yes")
    assert code == 2 and "`tokenmill rm one/files`" in err


def refused(disk, tm, name):
    """The message with which `rm` refuses, and changes nothing."""
    before = contents(disk.root)
    code, out, err = tm("rm", name, "--yes")
    assert (code, out) == (2, "") and "Traceback" not in err and contents(disk.root) == before
    return err


def test_other_weights_of_a_repository_stay(disk, tm, made):
    beside = {"model.onnx": b"onnx", "original/consolidated.00.pth": b"pth", "README.md": b"text"}
    folder = repository(disk.hub, "one/onnx", {"m.gguf": made.qwen.read_bytes(), **beside})
    gone = removed(disk, tm, "one/onnx:m.gguf", "--yes")
    assert len(gone) == 2 and gone[1].endswith("/m.gguf") and "/blobs/" in gone[0]
    assert (folder / "snapshots" / COMMIT / "original" / "consolidated.00.pth").read_bytes() == b"pth"


def test_the_only_file_of_a_repository_goes_with_the_repository(disk, tm, made):
    folder = repository(disk.hub, "one/single", {"m.gguf": made.qwen.read_bytes()})
    wanted = below(disk, folder)
    assert removed(disk, tm, "one/single:m.gguf", "--yes") == wanted


def test_files_of_several_snapshots_are_deleted_one_by_one(disk, tm, made):
    repository(disk.hub, "one/two", {"m.gguf": made.qwen.read_bytes()})
    repository(disk.hub, "one/two", {"m.gguf": made.qwen.read_bytes(), "README.md": b"text"}, OLDER, None)
    names = ("one/two:m.gguf", f"one/two/blob/{OLDER}/m.gguf")
    code, _, err = tm("rm", *names, "--yes")
    assert code == 2 and "has several snapshots of this: delete them one by one" in err
    for name in names:
        assert removed(disk, tm, name, "--yes")


def test_what_changes_while_it_asks_is_refused(disk, tm, monkeypatch):
    path = disk.home / "cache" / "whole.gguf"
    monkeypatch.setattr(remove, "_agrees", lambda _: bool(path.write_text("my only copy of something else")))
    code, _, err = tm("rm", "whole")
    assert code == 2 and "has sha256" in err and path.read_text() == "my only copy of something else"


@pytest.mark.parametrize(
    ("names", "gone"),
    [
        (("one/files:a-q8_0.gguf", "one/files"), "home/hub/models--one--files"),
        (("one/files", "one/files:a-q8_0.gguf"), "home/hub/models--one--files"),
    ],
)
def test_names_of_one_repository_go_together(disk, tm, names, gone):
    code, out, _ = tm("rm", *names, "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0 and document["would_delete"] == [str((disk.root / gone).resolve())]
    assert document["num_bytes"] == sum(file.stat().st_size for file in (disk.root / gone / "blobs").iterdir())
    assert all(path.startswith(gone) for path in removed(disk, tm, *names, "--yes"))


def test_a_link_to_itself_in_the_cache_folder(disk, tm):
    knot = disk.home / "cache" / "knot.gguf"
    knot.symlink_to(knot)
    code, out, _ = tm("list", "--json")
    assert code == 0 and any(model["path"] == str(knot) for model in json.loads(out)["models"])
    assert f"`rm {knot}` does" in refused(disk, tm, "~/cache/knot.gguf")


@pytest.mark.parametrize("variable", ["TOKENMILL_MODELS", "OLLAMA_MODELS", "LLAMA_CACHE", "TOKENMILL_CACHE"])
def test_the_home_folder_of_no_user_in_a_setting(disk, tm, monkeypatch, variable):
    monkeypatch.setenv(variable, "~nosuch/x")
    code, _, err = tm("list")
    assert code == 2 and "~nosuch/x" in err and variable in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [("list", "--dir", "~nosuch"), ("rm", "~nosuch", "--yes"), ("info", "~nosuch/x")])
def test_the_home_folder_of_no_user_that_is_typed(disk, tm, arguments):
    code, _, err = tm(*arguments)
    assert code == 2 and "~nosuch" in err and "Traceback" not in err


def test_the_home_folder_of_no_user_for_presets(tm, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CONFIG", "~nosuch")
    code, _, err = tm("presets")
    assert code == 2 and "TOKENMILL_CONFIG" in err


def test_the_hub_cache_in_the_home_folder_of_no_user(disk, monkeypatch):
    """The client takes the name as it stands."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "~nosuch/hub")
    assert not [entry for entry in entries_here() if entry.origin == "hub"]


def test_a_walk_ends_and_says_so(disk, monkeypatch):
    many = disk.root / "many"
    for number in range(6):
        (many / str(number) / "x").mkdir(parents=True)
    monkeypatch.setattr(folders._Walk.__init__, "__defaults__", (*folders._Walk.__init__.__defaults__[:-1], 8))
    (entry,) = folders.entries_below("folder", many)
    assert "not all were looked into" in entry.problem


@pytest.mark.parametrize("kind", ["binary", "pipe"])
def test_a_ref_that_cannot_be_read(disk, tm, kind):
    ref = disk.hub / "models--one--tiny" / "refs" / "main"
    ref.unlink()
    if kind == "pipe":
        os.mkfifo(ref)
    else:
        ref.write_bytes(b"\xff\xfe\x00")
    code, out, _ = tm("list")
    assert code == 0 and f"`rm {ref}` deletes it" in out
    for arguments in (("rm", "one/tiny", "--yes"), ("info", "whle")):
        code, _, err = tm(*arguments)
        assert code == 2 and "Traceback" not in err


def test_a_ref_to_nothing_is_named_and_no_repository_thrown_away(disk):
    ref = disk.hub / "models--one--tiny" / "refs" / "pr"
    ref.mkdir()
    (ref / "1").write_text("c" * 40)
    (entry,) = [each for each in entries_here() if each.name == "one/tiny"]
    assert entry.problem.endswith(f"`rm {ref.resolve() / '1'}` mends it")
    assert locate("one/tiny", offline=True).is_dir()


def test_commands_that_are_advised_can_be_pasted(disk, tm):
    folder = disk.given / "my models" / "a b"
    shutil.copytree(disk.given / "deep" / "directory", folder)
    for path in (folder, disk.given / "with space.gguf"):
        (entry,) = [each for each in entries_here() if each.path == path]
        assert shlex.split(entry.elsewhere)[-1] == str(path)


def test_a_model_with_a_chat_template_is_named_instruct_in_the_list(tm, tmp_path, monkeypatch):
    save_chat_model(tmp_path / "models")
    monkeypatch.setenv("TOKENMILL_MODELS", str(tmp_path / "models"))
    models = json.loads(tm("list", "--json")[1])["models"]
    assert [model["kind"] for model in models if model["name"].startswith(str(tmp_path))] == ["instruct"]


def test_an_encoder_is_named_embedding_in_the_list(tm, tmp_path, monkeypatch):
    save_encoder("bert", tmp_path / "models")
    monkeypatch.setenv("TOKENMILL_MODELS", str(tmp_path / "models"))
    models = json.loads(tm("list", "--json")[1])["models"]
    assert [model["kind"] for model in models if model["name"].startswith(str(tmp_path))] == ["embedding"]


def test_short_names_are_listed_with_size_context_and_kind(tm):
    names = {row["name"]: row for row in json.loads(tm("list", "--names", "--json")[1])}
    assert [name for name, row in names.items() if row["kind"] == "base"] == ["gemma3-270m"]
    assert all(row["context"] >= 2048 for row in names.values())
    assert {name for name, row in names.items() if row["num_bytes"] is None} == {"falcon3-1b"}
    shown = tm("list", "--names")[1]
    assert re.search(r"smollm2-135m .*98\.4 MB +8,192 +instruct", shown)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.long)])  # 253 MB
def test_what_the_table_of_names_says_is_so(name):
    path, model = locate(name), SHORT_NAMES[name]
    facts = facts_of(path)
    assert (path.stat().st_size, facts.context) == (model.num_bytes, model.context)
    assert facts.kind == ("base" if model.is_base else "instruct")
