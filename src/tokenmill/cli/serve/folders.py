"""The folders of a server that was given none: sessions, files of batches, blocks of prompts."""

from dataclasses import replace
from pathlib import Path

from tokenmill.cli.process.display import remark
from tokenmill.errors import ConfigError
from tokenmill.hub.download import cache_folder, data_folder
from tokenmill.settings.engine_config import EngineConfig


def check_folders(replicas: int, batch_dir: Path | None, lora_folder: Path | None) -> None:
    """Refuse folders that several engines do not share, and one that is not there."""
    if replicas > 1 and batch_dir is not None:
        raise ConfigError("--batch-dir", str(batch_dir), "without --replicas: several engines take no batches")
    if replicas > 1 and lora_folder is not None:
        raise ConfigError("--lora-folder", str(lora_folder), "without --replicas: one engine alone would load from it")
    if lora_folder is not None and not lora_folder.is_dir():
        raise ConfigError("--lora-folder", str(lora_folder), "a folder that is there")


def _data_folder(name: str) -> Path:
    """Make a folder for what clients give. OSError, or RuntimeError without a home folder."""
    folder = data_folder() / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def session_folder() -> Path:
    """Make the folder in which sessions are kept."""
    try:
        return _data_folder("sessions")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        folder = cache_folder() / "sessions"
        remark(f"warning: sessions are kept in {folder}, a cache ({why}): set TOKENMILL_DATA or --session-dir")
    return folder


def batch_folder() -> Path | None:
    """Make the folder in which files and batches are kept, if there may be one."""
    try:
        return _data_folder("batches")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        remark(f"warning: this server takes no files and batches ({why}): set TOKENMILL_DATA or --batch-dir")
    return None


def with_prefixes(engine: EngineConfig) -> EngineConfig:
    """Set a directory that keeps computed rows for the next start."""
    if engine.prefix_cache and engine.cache and engine.prefix_dir is None:
        folder = cache_folder() / "prefixes"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            remark(f"warning: {folder} cannot be made ({error.strerror}), so no rows are kept for the next start")
        else:
            engine = replace(engine, prefix_dir=str(folder))
    return engine
