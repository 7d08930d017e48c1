"""The verbs by what is typed: which one is meant, groups of verbs, their help pages, and the text of --version."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from tokenmill.cli.parser.command import HELP_ROW, Command, UsageError, page
from tokenmill.cli.parser.options import OTHERS
from tokenmill.cli.parser.other_names import VERBS_ELSEWHERE
from tokenmill.cli.process.display import echo
from tokenmill.registry import VERBS, lookup
from tokenmill.version import __version__

VERSION_ROW = ("--version", "Print the versions, and what the native program runs on.")


class Group(NamedTuple):
    """A group of verbs. default: the verb that runs where no verb is typed."""

    help: str
    default: str = ""
    examples: tuple[str, ...] = ()


GROUPS = {
    "": Group(
        'Turns prompts into tokens: the same text however it was computed.\n\nStart with: tokenmill generate -p "Hello"'
    ),
    "cache": Group("What lies in the cache folder."),
    "bench": Group(
        "How fast, how near to this machine's limit, and is it still the same text. Without a verb: run.",
        "run",
        (
            "tokenmill bench",
            "tokenmill bench --tests pp512,tg128 --batch 1,4,16",
            "tokenmill bench sweep --batch 1,2,4 --prompt 128,512 --new 32 --output sweep.jsonl",
            "tokenmill bench plot sweep.jsonl",
            "tokenmill bench run --help",
        ),
    ),
    "eval": Group("How good a model is."),
}


def run_words(words: Sequence[str], group: str = "") -> None:
    """Run the verb that the first words name, with those after them."""
    names, default = verbs_of(group), GROUPS[group].default
    first = words[0].replace("_", "-") if words else ""
    if first in ("-h", "--help") or not (first or default):
        echo(_help_page(group))
    elif first == "--version" and not group:
        echo(version_text())
    elif first in names:
        path = f"{group} {first}".lstrip()
        if path in GROUPS:
            run_words(words[1:], path)
        else:
            Command(path).run(words[1:])
    elif default and (not words or first.startswith("-") or Path(words[0]).exists()):
        Command(f"{group} {default}").run(words)
    else:
        _suggest(group, words[0], names)
        Command(f"{group} {default}").run(words)


def verbs_of(group: str) -> list[str]:
    """Name the verbs of a group in their order; for "" all verbs and groups."""
    within = [word.split() for word in VERBS if not group or word.startswith(f"{group} ")]
    return list(dict.fromkeys(words[1 if group else 0] for words in within))


def _help_page(group: str) -> str:
    rows = [(name, _summary(f"{group} {name}".lstrip())) for name in verbs_of(group)]
    options = [HELP_ROW] if group else [VERSION_ROW, HELP_ROW]
    usage = f"tokenmill {group}".rstrip() + " [OPTIONS] COMMAND [ARGS]..."
    return page(usage, GROUPS[group].help, {OTHERS: options, "Commands": rows}, GROUPS[group].examples)


def _summary(path: str) -> str:
    """Return the first paragraph of what a verb says of itself."""
    text = GROUPS[path].help if path in GROUPS else lookup(VERBS, path, "verb").command.__doc__
    return " ".join(text.partition("\n\n")[0].split())


def _suggest(group: str, name: str, names: Sequence[str]) -> None:
    """Raise UsageError for what names no verb, unless the verb that runs without a name may take it."""
    if name.startswith("-"):
        option = name.partition("=")[0]
        near = get_close_matches(option, ("--version", "--help"), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ". A verb comes first, as in `tokenmill generate -p …`"
        raise UsageError(group, f"No such option: {option}", hint)
    near = [] if group else [verb for verb in VERBS_ELSEWHERE.get(name, []) if verb in names or verb.startswith("-")]
    if not near and not group:
        from tokenmill.cli.elsewhere.hints import verb_hint  # long tables, of use after a mistake alone

        if hint := verb_hint(name):
            raise UsageError(group, f"No such command {name!r}: {hint}")
    near = near or get_close_matches(name, names, n=1)
    if near:
        raise UsageError(group, f"No such command {name!r}", f". Did you mean {' or '.join(map(repr, near))}?")
    if not GROUPS[group].default:
        text = " " in name and not group
        more = ". To continue that text, type tokenmill generate -p …" if text else ""
        raise UsageError(group, f"No such command {name!r}", more)


def version_text() -> str:
    """Write three lines: name and version alone; the native library with its instruction set and origin; Python and
    torch, which is not imported.
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from tokenmill.kernels import native_library

    if (why := native_library.why_not()) is not None:
        library = f"the native program's library {why}"
    else:
        built = f"built from {native_library.built_from()}"
        library = f"native library: {native_library.best_build()}, ABI {native_library.ABI}, {built}"
    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = "no torch"
    return f"tokenmill {__version__}\n{library}\nPython {platform.python_version()}, {torch}"
