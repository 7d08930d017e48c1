"""Make the environment of a peer: its own, so that its pins never meet ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tokenmill.bench.peers.known import TORCH, Peer, environment
from tokenmill.errors import TokenmillError
from tokenmill.hub.progress import Progress

CONSTRAINTS = "constraints.txt"  # in every environment that is made here


def install(peer: Peer, again: bool, progress: Progress) -> Path:
    """Make the environment and return its Python. One that could not be finished is deleted. pip's output is shown."""
    folder = environment(peer)
    if folder.exists() and not again:
        return folder / "bin" / "python"
    if not peer.pip:
        raise TokenmillError(f"{peer.name} has no environment to install: it is {peer.about}")
    if folder.exists() and not (folder / CONSTRAINTS).is_file():
        raise TokenmillError(f"{folder} is there and was not made by this verb: it is not deleted; move it away")
    shutil.rmtree(folder, ignore_errors=True)
    done = False
    try:
        progress.stage(f"making {folder}")
        _run([sys.executable, "-m", "venv", str(folder)], {})
        (folder / CONSTRAINTS).write_text(f"{TORCH}\n", encoding="utf-8")
        variables = {"PIP_CONSTRAINT": str(folder / CONSTRAINTS), **dict(peer.variables)}
        for number, arguments in enumerate(peer.pip, start=1):
            progress.stage(f"step {number} of {len(peer.pip)}: pip {' '.join(arguments)}")
            _run([str(folder / "bin" / "python"), "-m", "pip", *arguments], variables)
        done = True
    except OSError as error:
        why = error.strerror or error
        raise TokenmillError(f"{folder} cannot be written: {why}; set TOKENMILL_CACHE to another folder") from None
    finally:
        if not done:
            shutil.rmtree(folder, ignore_errors=True)
    return folder / "bin" / "python"


def _run(command: list[str], variables: dict[str, str]) -> None:
    """stdout stays ours: what pip prints goes to stderr."""
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=sys.stderr, check=False)  # noqa: S603  (fixed words)
    if done.returncode:
        raise TokenmillError(f"`{' '.join(command[1:])}` has failed; see pip's message above")
