"""docs/options.md: every verb of the command line with its options, from the parser that reads them."""

import inspect
import re
from collections.abc import Iterator

from tests.book.markdown import table
from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.options import ENGINE, SAMPLING, Parameter, option_name
from tokenmill.registry import VERBS
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

SHARED = {ENGINE: settings_of(EngineConfig), SAMPLING: settings_of(SamplingParams)}
ANCHORS = {ENGINE: "of-an-engine", SAMPLING: "of-a-text"}
HEAD = """# Command line

Every verb of `tokenmill`, with its options. This page is made of the parser itself, by `python -m tests.book`;
`tokenmill VERB --help` prints the same on a terminal. Options that are settings of an engine or of a text stand on the
page of [settings](settings.md), once for all verbs; a verb names those whose meaning is another one for it.

The names that vLLM, llama.cpp, Ollama and transformers have for these options are taken too:
[Coming from Ollama](coming-from-ollama.md) and the three pages after it list them. Options may be written with
underscores. Text goes to stdout, all else to stderr. Exit codes: 0; 2 for what the user can put right; 130 for Ctrl-C;
1 for a fault of tokenmill, and for a text that a benchmark or a check found wrong.
"""


def verbs() -> Iterator[Command]:
    """Every verb."""
    return map(Command, VERBS)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(section, verbs())])


def section(verb: Command) -> str:
    """A verb: how it is called, what it does, its options."""
    own, shared = [], {panel: [] for panel in SHARED}
    for param in verb.parameters:
        if param.name in SHARED.get(param.told.panel, {}):
            shared[param.told.panel].append(param)
        else:
            own.append(record(param))
    about = inspect.cleandoc(verb.module.command.__doc__)
    parts = [f"## tokenmill {verb.path}", f"`tokenmill {verb.path} {verb.usage}`", paragraphs(about)]
    shown = "\n".join(verb.module.EXAMPLES)
    parts.append(f"<!-- not run: an example of --help, which a test types -->\n```\n{shown}\n```")
    parts += [table(("option", ""), own)] if own else []
    parts += [inherited(panel, params) for panel, params in shared.items() if params]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def inherited(panel: str, params: list[Parameter]) -> str:
    """A sentence about the settings that are options here, and the help of those that mean something else here."""
    told, names = SHARED[panel], [param.name for param in params]
    left_out = [name for name in told if name not in names and name != "model"]
    kind = "an engine" if panel == ENGINE else "a text"
    if len(names) < len(left_out):
        said = f"Of [the settings of {kind}](settings.md#{ANCHORS[panel]}): {', '.join(map(_code, names))}."
    else:
        without = f" but {', '.join(map(_code, left_out))}" * bool(left_out)
        said = f"All [settings of {kind}](settings.md#{ANCHORS[panel]}){without}."
    other = [record(param) for param in params if param.told.help != told[param.name].help]
    return said + (f" These mean something of their own here:\n\n{table(('option', ''), other)}" if other else "")


def _code(name: str) -> str:
    return f"`{option_name(name)}`"


def record(param: Parameter) -> tuple[str, str]:
    """The row of an option: its names with what it takes, and its help."""
    names, text = param.help_row()
    if default := re.search(r"\s*\[([^\[\]]*)\]$", text):
        text = f"{text[: default.start()]} *{default[1][0].upper()}{default[1][1:]}.*"
    return f"`{names}`", escaped(text)


def paragraphs(text: str) -> str:
    """Paragraphs without the line ends that they have in the source."""
    return "\n\n".join(escaped(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


def escaped(text: str) -> str:
    """Text in which `<` begins no tag."""
    return re.sub(r"<(?=[a-z|/])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", "&lt;", text)
