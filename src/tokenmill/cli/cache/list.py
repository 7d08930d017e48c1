"""`tokenmill cache list`: packed copies, fetched models and all else in the cache folder."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenmill.cli.parser.options import JSON
from tokenmill.cli.process.display import echo, print_json, print_table
from tokenmill.hub.download import cache_folder
from tokenmill.loader.copies import copies, copies_folder
from tokenmill.units import size

EXAMPLES = ("tokenmill cache list", "tokenmill cache list --json")
HEADER = ("what", "name", "of", "size", "last used")
EXPENDABLE = ("last used", "what", "of")
OTHERS = {
    "headers.json": "what the headers of models tell `tokenmill list`",
    "machine": "measured limits of this machine",
    "prefixes": "blocks of prompts of `tokenmill serve`",
    "packed": "verified packed models",
    "first-fetches.json": "sha256 of models of the hub that have short names",
    "sessions": "texts saved by clients of `tokenmill serve`, which had no data folder: nothing makes them again",
}


def command(json: bool = JSON) -> None:
    """Show what lies in the cache folder: packed copies of models, fetched models, stored blocks of prompts.

    The folder is TOKENMILL_CACHE, else tokenmill in XDG_CACHE_HOME, else ~/.cache/tokenmill. All of it can be deleted:
    packed copies are made again when a model is loaded, models are fetched again. What people keep lies elsewhere: in
    TOKENMILL_DATA, else tokenmill in XDG_DATA_HOME, else ~/.local/share/tokenmill.
    """
    if json:
        print_json({"path": str(cache_folder()), "entries": cache_rows()})
    else:
        show_cache()


def cache_rows() -> list[dict[str, Any]]:
    """List all that lies in the cache folder: packed copies, then files and folders by their names."""
    return [*_packed(), *_others()]


def show_cache() -> None:
    """Print the table of what lies in the cache folder."""
    rows = cache_rows()
    if not rows:
        echo(f"{cache_folder()}: empty")
    else:
        shown = [(row["what"], row["name"], row["of"], size(row["num_bytes"]), _ago(row["used_at"])) for row in rows]
        total = size(sum(row["num_bytes"] for row in rows))
        print_table(f"{cache_folder()}: {total}", shown, HEADER, EXPENDABLE)


def _packed() -> Iterator[dict[str, Any]]:
    for path, source, kind, num_bytes, used_at in sorted(copies(), key=lambda copy: -copy.used_at):
        of = f"{Path(source).name}, {kind}" if source else "another version of tokenmill"
        yield {"what": "packed copy", "name": path.name, "of": of, "num_bytes": num_bytes, "used_at": used_at}


def _others() -> Iterator[dict[str, Any]]:
    folder = cache_folder()
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        packed = {copy.path for copy in copies()} if path == copies_folder() else set()
        files = [file for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
        found = [file.stat() for file in files if file not in packed and not file.name.startswith(".")]
        if found:
            yield {
                "what": "file" if path.is_file() else "folder",
                "name": path.name,
                "of": OTHERS.get(path.name, ""),
                "num_bytes": sum(each.st_size for each in found),
                "used_at": max(max(each.st_atime, each.st_mtime) for each in found),
            }


def _ago(used_at: float) -> str:
    seconds = max(time.time() - used_at, 0)
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "now"
