"""`tokenmill cache list`: what it lists beside packed copies, with sizes and times of files that a test has made."""

import json
import os
import time

import pytest

NOW = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder in which nothing was used for two days."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "time", lambda: NOW)
    return tmp_path


def write(path, num_bytes, seconds_ago=172_800):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * num_bytes)
    os.utime(path, (NOW - seconds_ago, NOW - seconds_ago))


def test_files_and_folders_are_listed_and_hidden_files_are_not(tm, folder):
    write(folder / "model.gguf", 1000)
    write(folder / ".model.gguf.lock", 7)
    write(folder / "prefixes" / "model" / "one", 30, 60)
    write(folder / "prefixes" / "model" / "two", 12, 90)
    write(folder / "prefixes" / "model" / ".half", 500, 0)
    (folder / "empty").mkdir()
    code, out, _ = tm("cache", "list", "--json")
    assert code == 0 and json.loads(out) == {
        "path": str(folder),
        "entries": [
            {"what": "file", "name": "model.gguf", "of": "", "num_bytes": 1000, "used_at": NOW - 172_800},
            {
                "what": "folder",
                "name": "prefixes",
                "of": "blocks of prompts of `tokenmill serve`",
                "num_bytes": 42,
                "used_at": NOW - 60,
            },
        ],
    }


def test_without_a_file_the_folder_is_empty(tm, folder):
    assert tm("cache", "list")[:2] == (0, f"{folder}: empty\n")


@pytest.mark.parametrize(
    "seconds, said",
    [
        (0, "now"),
        (59, "now"),
        (60, "1 minute ago"),
        (120, "2 minutes ago"),
        (3_599, "59 minutes ago"),
        (3_600, "1 hour ago"),
        (7_200, "2 hours ago"),
        (86_400, "1 day ago"),
        (172_800, "2 days ago"),
        (-5, "now"),
    ],
)
def test_how_long_ago_an_entry_was_used(tm, folder, seconds, said):
    write(folder / "model", 1, seconds)
    _, out, _ = tm("cache", "list")
    assert out.splitlines()[-1].split("  ")[-1].strip() == said
