"""Environments of peers, with a pip that only takes notes."""

import subprocess
import sys

import pytest

from tokenmill.bench.peers import known as module
from tokenmill.bench.peers.known import CONSTRAINTS, TORCH, Peer, environment, install
from tokenmill.errors import TokenmillError

PEER = Peer(
    "mill", "a mill", "x.py", pip=(("install", "millstone"), ("install", "flour")), variables=(("GRAIN", "oats"),)
)


class Noted:
    def __init__(self):
        self.stages = []

    def stage(self, text):
        self.stages.append(text)


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """The commands that are run, with their variables. A command with a name in `fails` fails."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    commands, fails = [], []

    def run(command, env, stdout, check):
        commands.append((command, env.get("PIP_CONSTRAINT"), env.get("GRAIN"), "PATH" in env))
        assert stdout is sys.stderr and not check
        if "venv" in command:
            (environment(PEER) / "bin").mkdir(parents=True)
        return subprocess.CompletedProcess(command, int(bool(set(fails) & set(command))))

    monkeypatch.setattr(module.subprocess, "run", run)
    return commands, fails


def test_an_environment_is_made_step_by_step(ran):
    folder, progress = environment(PEER), Noted()
    python = folder / "bin" / "python"
    assert install(PEER, False, progress) == python
    constraints = str(folder / CONSTRAINTS)
    assert ran[0] == [
        ([sys.executable, "-m", "venv", str(folder)], None, None, True),
        ([str(python), "-m", "pip", "install", "millstone"], constraints, "oats", True),
        ([str(python), "-m", "pip", "install", "flour"], constraints, "oats", True),
    ]
    assert progress.stages == [
        f"making {folder}", "step 1 of 2: pip install millstone", "step 2 of 2: pip install flour",
    ]  # fmt: skip
    assert (folder / CONSTRAINTS).read_text() == f"{TORCH}\n"


def test_one_that_is_there_is_made_again_only_where_it_is_asked_for(ran):
    python = install(PEER, False, Noted())
    ran[0].clear()
    assert install(PEER, False, Noted()) == python and ran[0] == []
    (python.parent / "rust").touch()
    assert install(PEER, True, Noted()) == python and len(ran[0]) == 3
    assert not (python.parent / "rust").exists()


def test_what_somebody_else_has_made_is_not_deleted(ran):
    folder = environment(PEER)
    folder.mkdir(parents=True)
    (folder / "mine").touch()
    with pytest.raises(TokenmillError, match="was not made by this verb: it is not deleted; move it away"):
        install(PEER, True, Noted())
    assert (folder / "mine").exists() and ran[0] == []


@pytest.mark.parametrize("what", ["venv", "flour"])
def test_one_that_could_not_be_finished_is_deleted(what, ran):
    ran[1].append(what)
    with pytest.raises(TokenmillError, match=rf"^`-m .*{what}.*` has failed; see pip's message above$"):
        install(PEER, False, Noted())
    assert not environment(PEER).exists()


def test_a_folder_that_cannot_be_written_is_named(ran, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Path, "write_text", full)
    with pytest.raises(TokenmillError, match="cannot be written: No space left on device; set TOKENMILL_CACHE to a"):
        install(PEER, False, Noted())
    assert not environment(PEER).exists()


def test_a_peer_that_has_nothing_to_install(ran):
    with pytest.raises(TokenmillError, match=r"^stone has no environment to install: it is here already$"):
        install(Peer("stone", "here already", "x.py"), False, Noted())
