"""The engines that tokenmill is measured against: what drives each, and how its environment is made."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.hub.download import cache_folder
from tokenmill.hub.progress import Progress

PROGRAMS = Path(__file__).parent / "programs"
OURS, SPECULATING = "tokenmill", "tokenmill-speculation"
TORCH = "torch==2.13.0"  # a looser pin takes gigabytes of another device's libraries
# They come along as dependencies, are not needed for text, and do not load beside a torch for the CPU.
OF_OTHER_DEVICES = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True)
class Peer:
    """An engine to be measured against. program: the file in programs/. package: what has to be importable.

    pip: arguments of pip, one call after the other. variables: set in the environment meanwhile. is_binary: whether it
    is given by the path of a binary, and its program runs on our own Python. variants: ways to run it, by name, as
    options of its program's `load`. Each is measured, in a process of its own, and the better one counts.
    """

    name: str
    about: str
    program: str
    package: str = ""
    pip: tuple[tuple[str, ...], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    is_binary: bool = False
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})

    @property
    def is_ours(self) -> bool:
        """True for tokenmill itself."""
        return self.package == OURS


# Which of the two is faster with llama.cpp depends on the processor, the batch and the length.
FLASH_ATTENTION = {"flash attention": {"flash_attention": True}, "no flash attention": {"flash_attention": False}}
REPACKED = {f"{name}, repacked": {**options, "repack": True} for name, options in FLASH_ATTENTION.items()}

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "this engine, in a process of its own, decoding plainly", "tokenmill_engine.py", OURS),
        Peer(SPECULATING, "the same with speculation", "tokenmill_engine.py", OURS),
        Peer(
            "transformers",
            "Hugging Face transformers, generate() as it comes",
            "transformers_generate.py",
            "transformers",
            (("install", TORCH), ("install", "transformers", "gguf", "accelerate")),
        ),
        Peer(
            "transformers-compiled",
            "the same with a static cache, compiled and frozen (about 2 minutes at the first text)",
            "transformers_compiled.py",
            "transformers",
            (("install", TORCH), ("install", "transformers", "gguf", "accelerate")),
        ),
        Peer(
            "llama.cpp",
            "llama.cpp built from source for this processor (about 6 minutes on 2 cores)",
            "llama_cpp_python.py",
            "llama_cpp",
            (("install", "--no-binary", "llama-cpp-python", "llama-cpp-python"),),
            (("CMAKE_ARGS", "-DGGML_NATIVE=ON"),),
            variants=FLASH_ATTENTION,
        ),
        Peer(
            "xllamacpp",
            "llama.cpp as a ready wheel: its kernels use AVX2 at most",
            "xllamacpp_wheel.py",
            "xllamacpp",
            (("install", "xllamacpp", "numpy"),),
            variants=FLASH_ATTENTION,
        ),
        Peer(
            "openvino",
            "OpenVINO GenAI with int8 weights, converted once by optimum-intel",
            "openvino_genai_int8.py",
            "openvino_genai",
            (
                ("install", TORCH),
                ("install", "openvino-genai", "optimum-intel[openvino]", "gguf", "accelerate"),
                ("uninstall", "--yes", *OF_OTHER_DEVICES),
            ),
        ),
        Peer(
            "llama-bench",
            "llama.cpp's own benchmark, a binary of yours: --peer llama-bench=PATH",
            "llama_bench_binary.py",
            is_binary=True,
            variants=FLASH_ATTENTION,
        ),
        Peer(
            "ik_llama.cpp",
            "ik_llama.cpp's llama-bench, a binary of yours, with its run-time repacking: --peer ik_llama.cpp=PATH",
            "llama_bench_binary.py",
            is_binary=True,
            variants=REPACKED,
        ),
    )
}


def find_peer(name: str) -> Peer:
    """Find a peer by its name; TokenmillError, with the names there are, for any other."""
    if name not in PEERS:
        raise TokenmillError(f"no peer {name!r}: there are {', '.join(PEERS)}")
    return PEERS[name]


def environment(peer: Peer) -> Path:
    """Return the folder in which `tokenmill bench install-peer` makes the environment of a peer."""
    return cache_folder() / "peers" / peer.name


def command_for(peer: Peer, given: str | None) -> list[str] | None:
    """Return the command that starts a peer: by what was given, by its environment, or by our own; else None."""
    program = str(PROGRAMS / peer.program)
    if peer.is_binary:
        return None if given is None else [sys.executable, program, _existing(peer, given)]
    if given is not None:
        return [_existing(peer, given), program]
    python = environment(peer) / "bin" / "python"
    if python.exists() and not peer.is_ours:
        return [str(python), program]
    return [sys.executable, program] if find_spec(peer.package) is not None else None


def _existing(peer: Peer, given: str) -> str:
    found = shutil.which(os.path.expanduser(given))  # noqa: PTH111  (a Path would lose the "./")
    if found is None:
        what = "a llama-bench binary" if peer.is_binary else "a Python interpreter that has it"
        raise ConfigError("--peer", f"{peer.name}={given}", f"the path of {what}")
    return found


CONSTRAINTS = "constraints.txt"  # in every environment that is made here


def install(peer: Peer, again: bool, progress: Progress) -> Path:
    """Make the environment and return its Python; an unfinished one is deleted. pip's output is shown."""
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
    """Run pip. What it prints goes to stderr: stdout stays ours."""
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=sys.stderr, check=False)  # noqa: S603  (fixed words)
    if done.returncode:
        raise TokenmillError(f"`{' '.join(command[1:])}` has failed; see pip's message above")
