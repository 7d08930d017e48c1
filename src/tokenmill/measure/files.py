"""Output files of measurements: checked before the work begins, and written atomically.

A measurement takes minutes. So a verb checks first that its output can be written (`check_appendable`,
`make_directory`). A file then grows a line at a time, or appears under its name only when it is complete
(`write_atomically`).
"""

from pathlib import Path

from tokenmill.errors import ConfigError
from tokenmill.memory.atomic_file import beside, make_folder, writing


def check_appendable(path: Path, setting: str) -> None:
    """Raise ConfigError when no line can be added to this file. Its folder is made, but not the file.

    Another process could begin to write such a file meanwhile, and lose it.
    """
    try:
        make_folder(path.parent)
        if not path.exists():
            _try(path)
            return
        with path.open("ab", buffering=0) as file:
            file.write(b"")  # a device that is full refuses even this
    except OSError as error:
        raise ConfigError(setting, str(path), f"a file that can be written ({error.strerror})") from None


def make_directory(path: Path, setting: str) -> None:
    """Make a directory, unless it is there; ConfigError when that, or writing into it, does not work."""
    try:
        make_folder(path)
        _try(path / "trial")
    except OSError as error:
        raise ConfigError(setting, str(path), f"a directory that can be written ({error.strerror})") from None


def write_atomically(path: Path, data: bytes, setting: str) -> None:
    """Write under a temporary name, then rename: a reader sees the old file or the new one."""
    try:
        with writing(path, sync=False) as out:
            out.write(data)
    except OSError as error:
        raise ConfigError(setting, str(path), f"a file that can be written ({error.strerror})") from None


def _try(path: Path) -> None:
    trial = beside(path)
    trial.touch(exist_ok=False)
    trial.unlink()
