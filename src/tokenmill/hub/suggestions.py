"""What is said where a name names no model that is here: the nearest names, and what else can be done."""

from collections.abc import Iterable
from difflib import get_close_matches
from shlex import quote

from tokenmill.hub.places.here import names_here
from tokenmill.hub.short_names import ALL_NAMES, HubFile

SHOWN = 8  # names of models that a message lists


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that is nearest to a word in any case, with or without what stands before its last / or :; or ""."""
    by_end = {each: name for name in names for each in (name.lower(), name.rpartition("/")[2].lower())}
    by_end |= {name.partition(":")[2].lower(): name for name in by_end.values() if name.startswith("ollama:")}
    near = get_close_matches(word.lower(), by_end, n=1)
    return by_end[near[0]] if near else ""


def no_such_model(model: str) -> str:
    """One line for a name that can be nothing."""
    if len(model.split()) > 1 and "/" not in model:
        return (
            f"no model {model!r}: there is no such file, and a name has no spaces; if it is a prompt, "
            f"`tokenmill generate -p {quote(model)}` goes on with it, and --chat has it answered"
        )
    here = names_here()
    near = nearest(model, [*ALL_NAMES, *here]) if model.strip() else ""
    hint = f" (did you mean {near!r}?)" if near else ""
    return (
        f"no model {model!r}{hint}: there is no such directory or file; {', '.join([*ALL_NAMES][:2])} and others are "
        f"short names (`tokenmill list --names`); a hub name looks like owner/name; {_said_here(here)}"
    )


def meant_here(model: str) -> str:
    """The end of a message about a name of the hub: the nearest name of what is on this machine, if one is near."""
    near = nearest(model, names_here())
    return f"; did you mean {near!r}, which is here?" if near not in ("", model) else ""


def without_network(short: str, model: HubFile, why: str) -> str:
    """One line for a short name that could not be fetched: what is here, and how to get it elsewhere."""
    address = f"https://huggingface.co/{model.repository}/resolve/{model.revision or 'main'}/{model.file}"
    elsewhere = f"fetched elsewhere from {address}, the file can be given by its path"
    return f"{short} stands for {model.hub_name}, and {why}; {_said_here(names_here())}; {elsewhere}"


def _said_here(names: list[str]) -> str:
    if not names:
        return "no model is on this machine"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"on this machine are {', '.join(names[:SHOWN])}{more} (`tokenmill list`)"
