"""`tokenmill rm`: deletes models that tokenmill or the hub's client has fetched, and what is kept for them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.list import FOLDERS
from tokenmill.cli.parser.options import JSON, OUTPUT, QUIET, argument, option
from tokenmill.cli.process.display import echo, print_json, remark
from tokenmill.errors import RequestError
from tokenmill.hub.places.entry import HUB, FoundModel, real_path
from tokenmill.hub.places.here import entries_here
from tokenmill.hub.places.removal import Removal, entries_named, refuse_others, remove_own
from tokenmill.loader.copies import delete_copy
from tokenmill.memory.open_files import processes_with
from tokenmill.units import counted, size

if TYPE_CHECKING:  # this imports safetensors, which --help does not wait for
    from tokenmill.loader.at_hand.kept import KeptFiles

EXAMPLES = (
    "tokenmill rm smollm2-135m --dry-run",
    "tokenmill rm owner/name:file.gguf --yes",
    "tokenmill rm smollm2-135m --kept-only",
)


@dataclass(frozen=True)
class _Plan:
    """The files to delete for names of one model or repository. removal: None where only what is kept goes."""

    name: str
    removal: Removal | None
    kept: Sequence["KeptFiles"]

    @property
    def num_bytes(self) -> int:
        own = self.removal.num_bytes if self.removal else 0
        return own + sum(each.num_bytes for each in self.kept)

    @property
    def paths(self) -> list[Path]:
        kept = [path for one in self.kept for path in one.paths]
        return [*(self.removal.paths if self.removal else ()), *kept]


def command(
    names: list[str] = argument(..., "NAME", "Names as `tokenmill list` shows them."),
    yes: bool = option(False, "Do not ask.", OUTPUT, "-y"),
    dry_run: bool = option(False, "Say what would be deleted, and delete nothing.", OUTPUT),
    kept_only: bool = option(
        False, "Delete only what is kept for the models: packed copies and blocks of prompts.", OUTPUT
    ),
    dirs: list[Path] | None = FOLDERS,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Delete models, with their packed copies and stored blocks of prompts, after saying so and asking.

    Deleted is what tokenmill has fetched, which its sha256 proves; from the hub's cache the hub's own client deletes.
    For the models of Ollama, LM Studio and llama.cpp, and in folders of yours, the command is told that deletes them
    there. A program that uses a model goes on with it: its files are gone when it ends.
    """
    entries = entries_here(dirs or ())
    plans = _plans(names, entries, kept_only)
    total = sum(plan.num_bytes for plan in plans)
    if not quiet:
        for line in (line for plan in plans for line in _said(plan)):
            remark(line)
    if not dry_run and any(plan.paths for plan in plans):
        if not yes and not _agrees(total):
            raise RequestError("nothing was deleted")
        for plan in plans:
            _run(plan)
    if json:
        paths = [str(path) for plan in plans for path in plan.paths]
        print_json({"deleted" if not dry_run else "would_delete": paths, "num_bytes": total})
    elif not quiet:
        echo(f"{'would delete' if dry_run else 'deleted'}: {', '.join(names)}, {size(total)}")


def _plans(names: Sequence[str], entries: list[FoundModel], kept_only: bool) -> list[_Plan]:
    """Plan what goes. Names of one repository of the hub go together: one may mean all of it, or two of them may."""
    groups = dict[str, dict[str, list[FoundModel]]]()
    for name in names:
        named = entries_named(name, entries)
        groups.setdefault(f"{named[0].place}:{named[0].repository}", {})[name] = named
    return [_plan(group, kept_only) for group in groups.values()]


def _plan(group: Mapping[str, list[FoundModel]], kept_only: bool) -> _Plan:
    """Plan what goes for names of one model or repository. RequestError for what tokenmill does not delete."""
    from tokenmill.hub.places.hub_cache import remove_from_hub
    from tokenmill.loader.at_hand.kept import KeptFiles, all_kept

    name, all_that_is_kept = ", ".join(group), all_kept()
    named = list({(entry.name, entry.path): entry for entries in group.values() for entry in entries}.values())
    paths = {str(real_path(entry.path)) for entry in named if entry.path is not None}
    kept = [found for path in sorted(paths) if (found := all_that_is_kept.get(path, KeptFiles())).num_bytes]
    if kept_only:
        return _Plan(name, None, kept)
    for entry in named:
        refuse_others(entry)
    if named[0].origin == HUB:
        is_whole = any(each == entries[0].repository for each, entries in group.items())
        return _Plan(name, remove_from_hub(named, is_whole), kept)
    return _Plan(name, remove_own(named[0]), kept)


def _said(plan: _Plan) -> list[str]:
    lines = []
    if plan.removal is not None:
        where = ", ".join(map(str, plan.removal.paths[:3])) + (" …" if len(plan.removal.paths) > 3 else "")
        lines.append(f"{plan.name}: {size(plan.removal.num_bytes)} in {where}")
    for one in plan.kept:
        for copy in one.copies:
            lines.append(f"{plan.name}: its packed copy ({copy.kind}), {size(copy.num_bytes)} in {copy.path}")
        for folder in one.prefixes:
            blocks = counted(folder.num_blocks, "block")
            lines.append(f"{plan.name}: {blocks} of its prompts, {size(folder.num_bytes)} in {folder.path}")
    files = [*(plan.removal.files if plan.removal else ()), *(copy.path for one in plan.kept for copy in one.copies)]
    for number, what in processes_with(files).items():
        lines.append(f"{plan.name}: process {number} ({what}) uses it, and goes on with it until it ends")
    return lines or [f"{plan.name}: nothing is kept for it"]


def _agrees(num_bytes: int) -> bool:
    if not sys.stdin.isatty():
        raise RequestError("nothing was deleted: there is nobody to ask; --yes deletes without a question")
    sys.stderr.write(f"delete {size(num_bytes)}? [y/N]: ")
    sys.stderr.flush()
    if not (answer := sys.stdin.readline()):  # Ctrl-D
        raise KeyboardInterrupt
    return answer.strip().lower() in ("y", "yes")


def _run(plan: _Plan) -> None:
    """Delete what is kept first, since it can be made again."""
    from tokenmill.cache.prefix_folders import delete_blocks

    for one in plan.kept:
        for copy in one.copies:
            delete_copy(copy.path)
        for folder in one.prefixes:
            delete_blocks(folder)
    if plan.removal is not None:
        plan.removal.run()
