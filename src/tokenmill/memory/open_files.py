"""The processes that have files open or mapped, as far as /proc tells."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
_SHOWN = 60  # characters of a command


def processes_with(files: Iterable[Path]) -> dict[int, str]:
    """Map the id of each other process that uses one of these files to its command."""
    wanted = {os.path.realpath(file) for file in files}
    found = {}
    for folder in Path("/proc").glob("[0-9]*") if wanted else ():
        if int(folder.name) != os.getpid() and wanted & set(_files_of(folder)):
            found[int(folder.name)] = _command(folder)
    return found


def _files_of(folder: Path) -> Iterator[str]:
    """Yield the paths of what a process has open or mapped; the files of other users' processes are not told."""
    with suppress(OSError):
        yield from _MAPPED.findall((folder / "maps").read_text(encoding="utf-8", errors="replace"))
    with suppress(OSError):
        for link in (folder / "fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


def _command(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "unknown"
    text = " ".join(word for word in words if word)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
