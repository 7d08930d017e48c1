"""The trunk: what one load and one token of program eager pass, in reading order; and docs/trunk.md, which
is made of it. `make map` (`python -m tests.trunk`) writes the page.
"""

from pathlib import Path

from tests.imports import files_imported
from tests.rooms import REPOSITORY, ROOT, first_sentence

PAGE = REPOSITORY / "docs" / "trunk.md"
CHAPTERS: dict[str, str] = {
    "A request, and the loop that answers it": """
        engine/engine engine/requests engine/inputs engine/core engine/thread engine/loop engine/inflight
        engine/outputs engine/session""",
    "Who runs next, and what texts keep": """
        schedule/sequence schedule/choosing schedule/matcher schedule/scheduler schedule/fairness schedule/memory
        schedule/keeps schedule/row_blocks schedule/blocks""",
    "Where rows and states live": """
        cache/spec cache/formats/__init__ cache/formats/dense cache/formats/layer cache/formats/dense_layer cache/pool
        cache/step""",
    "One forward": """
        program/spec program/forward program/runner program/eager""",
    "The arithmetic": """
        model/config model/rope_config model/blocks model/description model/mixers/__init__ model/mixers/attention
        model/parameters model/decoder model/layers model/mixers/attention_module model/rope kernels/attend/__init__
        kernels/attend/kernel kernels/attend/gather quant/schemes quant/matrix quant/stored""",
    "From logits to a token": """
        sample/state sample/counts sample/sampler sample/filters sample/probabilities sample/noise sample/logprobs
        sample/matchers sample/masks""",
    "Guess and check": """
        speculate/proposer speculate/speculation""",
}
PORTS = {
    "Keeps": ("schedule/keeps", "what one kind of layer keeps of texts", "schedule/row_blocks, schedule/state_slots"),
    "Mixer": ("model/mixers/__init__", "the first half of a layer", "model/mixers/attention"),
    "Matcher": ("schedule/matcher", "the tokens that a constraint admits", "constrain/"),
    "BlockStore": ("schedule/memory", "blocks that outlive the process", "cache/prefix_store"),
    "ProgramParts": ("program/forward", "what a program opens of its own", "program/parts"),
    "Ended": ("engine/outputs", "texts that have ended", "engine/verify, receipts/"),
}
"""Through which everything optional hangs on the trunk: the file, what it asks, and who answers."""


def files() -> list[Path]:
    return [ROOT / f"{name}.py" for names in CHAPTERS.values() for name in names.split()]


def imported() -> list[Path]:
    """The files outside of the trunk that it imports."""
    own = set(files())
    found = {other for path in own for other in files_imported(path)} - own
    return sorted(path for path in found if path.name != "__init__.py")


def num_lines() -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files())


def page() -> str:
    """docs/trunk.md as it should be."""
    parts = [
        "# The trunk\n\n"
        f"What one load and one token of program eager pass: {len(files())} files, {num_lines():,} lines, in the order "
        "in which they are read. A person can read them in an evening. Everything else is a branch, which hangs on one "
        "of six ports, or a face; the [map](map.md) has all files.\n",
        "## The ports\n\n| port | where | what it asks for | who answers |\n|---|---|---|---|\n"
        + "".join(f"| `{name}` | `{at}.py` | {asks} | `{who}` |\n" for name, (at, asks, who) in PORTS.items()),
    ]
    for title, names in CHAPTERS.items():
        rows = [f"| `{name}.py` | {first_sentence(ROOT / f'{name}.py')} |\n" for name in names.split()]
        parts.append(f"## {title}\n\n| file | what lives there |\n|---|---|\n{''.join(rows)}")
    names = ", ".join(f"`{path.relative_to(ROOT).with_suffix('')}`" for path in imported())
    parts.append(f"## What it uses from outside\n\n{names}.\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
