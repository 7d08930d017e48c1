"""The folders of a server that was given none: sessions, files of batches, blocks of prompts."""

from dataclasses import replace
from pathlib import Path

from tokenmill.cli.process.display import remark
from tokenmill.hub.download import cache_folder, data_folder
from tokenmill.settings.engine_config import EngineConfig


def _data_folder(name: str) -> Path:
    """A folder for what clients give. OSError or RuntimeError (there is no home folder) where it cannot be made."""
    folder = data_folder() / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def session_folder() -> Path:
    """The folder in which sessions are kept."""
    try:
        return _data_folder("sessions")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        folder = cache_folder() / "sessions"
        remark(f"warning: sessions are kept in {folder}, a cache ({why}): set TOKENMILL_DATA or --session-dir")
    return folder


def batch_folder() -> Path | None:
    """The folder in which files and batches are kept, if there may be one."""
    try:
        return _data_folder("batches")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        remark(f"warning: this server takes no files and batches ({why}): set TOKENMILL_DATA or --batch-dir")
    return None


def with_prefixes(engine: EngineConfig) -> EngineConfig:
    """The settings with a directory that keeps what was computed."""
    if engine.prefix_cache and engine.cache and engine.prefix_dir is None:
        folder = cache_folder() / "prefixes"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            remark(f"warning: {folder} cannot be made ({error.strerror}), so no rows are kept for the next start")
        else:
            engine = replace(engine, prefix_dir=str(folder))
    return engine
