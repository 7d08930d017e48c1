"""Hints for a word of another program on our command line: what it is here. Imported only for an error."""

from collections.abc import Collection, Sequence

from tokenmill.cli.elsewhere import llama_cpp, ollama, vllm
from tokenmill.cli.elsewhere.named import Named

PROGRAMS = {"llama.cpp": llama_cpp.LISTS, "Ollama": ollama.LISTS, "vLLM": vllm.LISTS}


def option_hint(arguments: Sequence[str], known: Collection[str]) -> str:
    """Explain the first option among the arguments that another program has and the verb has not; empty if there is
    none.

    known: the options of the verb, by every name. Ollama's parameters count as options: num_ctx as --num-ctx.
    """
    for argument in arguments:
        typed = argument.partition("=")[0]
        if not typed.startswith("-") or typed in known:
            continue
        for program, lists in PROGRAMS.items():
            for row in (*lists.get("options", ()), *lists.get("parameters", ())):
                if typed in (*row.names, *(f"--{name.replace('_', '-')}" for name in row.names)):
                    return f"{typed} is {program}'s; {_here(row)}"
    return ""


def verb_hint(name: str) -> str:
    """Explain a command that another program has and ours has not; empty if no program has it."""
    for program, lists in PROGRAMS.items():
        for row in lists["commands"]:
            words = row.theirs.split()
            if name in (words[0], " ".join(words[1:2])):
                return f"{row.theirs} is {program}'s; {_here(row)}"
    return ""


def _here(row: Named) -> str:
    way = row.ways[0]
    said = {"-": "not needed here", "": "not there here" if not row.note else ""}.get(way, f"here it is {way}")
    return ": ".join(part for part in (said, row.note) if part)
