"""One repository of the Hugging Face hub: its wanted files, fetched and checked.

Only what is data is fetched: weights, configs, tokenizers, templates; never code. Files come one by one and each is
checked against the sha256 that the hub gives for it, so an interrupted pull goes on at the file where it stopped.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_token,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.utils.tqdm import tqdm

from tokenmill.errors import CheckpointError
from tokenmill.hub.download import sha256_of
from tokenmill.hub.progress import Progress
from tokenmill.hub.weight_files import find_weights, missing_shards, shards_of

_SETTINGS = re.compile(
    r"[\w.-]+\.(json|jinja)|tokenizer\.model|merges\.txt|vocab\.txt|additional_chat_templates/[\w.-]+\.jinja", re.ASCII
)
_GGUF = re.compile(r"([\w-][\w.-]*/)*[\w-][\w.-]*\.gguf", re.ASCII)
_REFUSALS = {
    401: "does not accept the token (401): HF_TOKEN, or the token of `hf auth login`, is wrong or has expired",
    403: "forbids it (403): the token of HF_TOKEN may not read this repository",
}


class Repository:
    def __init__(self, name: str, revision: str | None, offline: bool, progress: Progress) -> None:
        self.name, self.revision, self.progress = name, revision, progress
        self.offline = offline or constants.HF_HUB_OFFLINE

    def fetch(self, gguf: str | None) -> Path:
        """Fetch the snapshot and return its directory; with `gguf`, or if it is one GGUF file alone, return its first
        part.
        """
        if self.offline:
            return self._cached(gguf, "offline or HF_HUB_OFFLINE forbids asking the hub")
        self.progress.stage(f"asking the hub for {self.name}")
        try:
            with self._plain_errors():
                info = HfApi().model_info(self.name, revision=self.revision, files_metadata=True)
        except ConnectionError as error:
            self.progress.stage(f"{error}: looking in the hub's cache on this machine")
            return self._cached(gguf, str(error))
        files = {entry.rfilename: entry for entry in info.siblings or []}
        names = self._choose(list(files), gguf)
        paths = [self._file(files[name], str(info.sha), f"{i}/{len(names)}") for i, name in enumerate(names, 1)]
        return paths[0] if names[0].endswith(".gguf") else paths[-1].parent

    def _choose(self, names: list[str], gguf: str | None) -> list[str]:
        """Choose the files to fetch: one GGUF or all its parts, or the settings with safetensors, or with `.bin` where
        there are no safetensors.
        """
        ggufs = [name for name in names if _GGUF.fullmatch(name)]
        # Of a split model the first part stands for all; any other file is its own first part.
        firsts = list(dict.fromkeys(shards_of(name)[0] for name in ggufs))
        if gguf is not None:
            # By its name, or by a part of it between punctuation: Q4_K_M, in any case.
            part = re.compile(rf"(?<![a-z0-9]){re.escape(gguf.lower())}(?![a-z0-9])(?!_[a-z])")
            named = [shards_of(gguf)[0]] if gguf in ggufs else [name for name in firsts if part.search(name.lower())]
            if len(named) != 1:
                many = "several files" if named else "no file"
                there = f"it has {', '.join(named or firsts)}" if ggufs else "it has no .gguf file at all"
                raise CheckpointError(f"{self.name} has {many} {gguf!r}: {there}")
            return self._parts(named[0], names)
        found = find_weights([name for name in names if "/" not in name])
        if "config.json" in names and found.files:
            settings = [name for name in names if _SETTINGS.fullmatch(name) and not name.endswith(".index.json")]
            return sorted([*settings, *([found.index] if found.index else [])]) + list(found.files)
        if len(firsts) == 1:
            return self._parts(firsts[0], names)
        several = f"has several models: give one as {self.name}:FILE, of {', '.join(firsts)}"
        none = "is no model that can be read: it needs a config.json with weights, or a .gguf"
        raise CheckpointError(f"{self.name} {several if ggufs else none}")

    def _parts(self, first: str, names: list[str]) -> list[str]:
        """Return a GGUF file, or all parts of the model whose first part it is."""
        parts = shards_of(first)
        if missing := missing_shards([name for name in names if name in parts]):
            raise CheckpointError(f"{self.name} is incomplete: {', '.join(missing)} not among its files")
        return parts

    def _file(self, entry: Any, commit: str, place: str) -> Path:
        """Take one file from the hub's cache, or fetch and check it; a wrong file is deleted from the cache."""
        name, bar = entry.rfilename, _bar_class(self.progress)
        is_here = isinstance(try_to_load_from_cache(self.name, name, revision=commit), str)
        self.progress.stage(f"{place} {name}: here already" if is_here else f"{place} {name}")
        try:
            with self._plain_errors():
                # Asked for by branch even if the file is here, so that the cache knows the branch's commit offline.
                path = Path(hf_hub_download(self.name, name, revision=self.revision, tqdm_class=bar))
        except ConnectionError as error:
            raise CheckpointError(f"{self.name}: {name} was not fetched: {error}; run it again") from error
        # A small text file has no sha256; the client has compared its size.
        sha256 = entry.lfs.sha256 if entry.lfs is not None else None
        if not is_here and sha256 is not None and sha256_of(path) != sha256:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise CheckpointError(f"{self.name}: {name} has not the sha256 {sha256}: deleted; run it again")
        return path

    def _cached(self, gguf: str | None, why: str) -> Path:
        """Find the snapshot in the hub's cache, whatever of it was fetched. why: the reason to look there alone."""
        try:
            with self._plain_errors():
                directory = Path(snapshot_download(self.name, revision=self.revision, local_files_only=True))
            names = [file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()]
            chosen = self._choose(names, gguf)
        except (ConnectionError, CheckpointError) as error:
            reason = str(error) if isinstance(error, CheckpointError) else "nothing of it was fetched before"
            raise CheckpointError(
                f"{self.name} is neither a directory here nor in the hub's cache, and {why}: {reason}"
            ) from error
        return directory / chosen[0] if chosen[0].endswith(".gguf") else directory

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Put the client's many errors into two, each with its reason.

        CheckpointError for a refusal, ConnectionError where the hub was not reached or could not answer.
        """
        try:
            yield
        except errors.GatedRepoError as error:
            raise CheckpointError(f"{self.name} is gated: accept its terms on the hub and set HF_TOKEN") from error
        except errors.RepositoryNotFoundError as error:
            if error.response is not None and error.response.status_code == 401 and get_token():
                raise CheckpointError(f"{self.name}: the hub {_REFUSALS[401]}") from error
            raise CheckpointError(
                f"no model {self.name!r}: there is no such directory, and the hub knows no such name, or it is private "
                "and HF_TOKEN is not set"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise CheckpointError(f"{self.name} has no revision {self.revision!r}: a branch, tag or commit") from error
        except Exception as error:  # the client raises its HTTP library's errors, another one's in each major
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in _REFUSALS:
                raise CheckpointError(f"{self.name}: the hub {_REFUSALS[status]}") from error
            raise ConnectionError(_why_unanswered(error, status)) from error


def _why_unanswered(error: BaseException, status: int | None) -> str:
    """Say why the hub gave no files: by its own status, or the first cause below what the client raised."""
    if status == 429:
        return "the hub allows no more requests for now (429); wait, or set HF_TOKEN"
    if status is not None:
        return f"the hub answered with status {status}"
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"the hub was not reached ({reason})"


def _bar_class(progress: Progress) -> type[tqdm]:
    """Make a bar for the hub's client, which shows nothing and passes the bytes on."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            progress.advance(self.n, self.total or self.n)

    return Bar
