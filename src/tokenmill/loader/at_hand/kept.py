"""The files that the cache folder keeps for a model: packed copies of it, and blocks of computed prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tokenmill.cache.prefix_folders import PrefixFolder, prefix_folders
from tokenmill.hub.download import cache_folder
from tokenmill.loader.copies import PackedCopy, copies


class KeptFiles(NamedTuple):
    """The files of one model."""

    copies: tuple[PackedCopy, ...] = ()
    prefixes: tuple[PrefixFolder, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """List the files and folders of both."""
        return [*(copy.path for copy in self.copies), *(folder.path for folder in self.prefixes)]

    @property
    def num_bytes(self) -> int:
        """Add up the sizes of both."""
        return sum(copy.num_bytes for copy in self.copies) + sum(folder.num_bytes for folder in self.prefixes)


def prefixes_folder() -> Path:
    """Name the folder of blocks where no setting names another."""
    return cache_folder() / "prefixes"


def all_kept() -> Mapping[str, KeptFiles]:
    """List the kept files by the resolved path of the model; under "" the files that do not name their model."""
    found: dict[str, KeptFiles] = {}
    for copy in copies():
        known = found.get(copy.source, KeptFiles())
        found[copy.source] = known._replace(copies=(*known.copies, copy))
    for folder in prefix_folders(prefixes_folder()):
        known = found.get(folder.model, KeptFiles())
        found[folder.model] = known._replace(prefixes=(*known.prefixes, folder))
    return found
