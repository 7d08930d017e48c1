"""What the cache folder keeps for a model: packed copies of it, and blocks of prompts that it has computed."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tokenmill.cache.prefix_folders import PrefixFolder, prefix_folders
from tokenmill.hub.download import cache_folder
from tokenmill.loader.copies import PackedCopy, copies


class KeptFiles(NamedTuple):
    """Of one model."""

    copies: tuple[PackedCopy, ...] = ()
    prefixes: tuple[PrefixFolder, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """The files and folders of both."""
        return [*(copy.path for copy in self.copies), *(folder.path for folder in self.prefixes)]

    @property
    def num_bytes(self) -> int:
        """The size of both."""
        return sum(copy.num_bytes for copy in self.copies) + sum(folder.num_bytes for folder in self.prefixes)


def prefixes_folder() -> Path:
    """The folder of blocks where no setting names another."""
    return cache_folder() / "prefixes"


def all_kept() -> Mapping[str, KeptFiles]:
    """What is kept, by the resolved path of the model; under "" what does not say of which model it is."""
    found: dict[str, KeptFiles] = {}
    for copy in copies():
        known = found.get(copy.source, KeptFiles())
        found[copy.source] = known._replace(copies=(*known.copies, copy))
    for folder in prefix_folders(prefixes_folder()):
        known = found.get(folder.model, KeptFiles())
        found[folder.model] = known._replace(prefixes=(*known.prefixes, folder))
    return found
