"""The pages of docs/ that are made, wholly or in parts, of the source: each by its name, with what makes it."""

from collections.abc import Callable, Mapping
from functools import cache

from tests.book import batching, environment, options, routes, settings
from tests.book.elsewhere import of_transformers
from tests.book.elsewhere.tables import parts
from tests.book.markdown import DOCS, table, with_parts
from tokenmill.cli.chat.conversation import COMMANDS
from tokenmill.cli.elsewhere import llama_cpp, ollama, vllm


@cache
def steps() -> list[dict[str, batching.Cell]]:
    """The run that a picture and a table show."""
    return batching.run()


def old(name: str) -> str:
    """The text that a file has; empty if there is none."""
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def commands_of_chat() -> str:
    """What `/help` lists."""
    return table(("command", ""), ((f"`{name}`", told) for name, told in COMMANDS.items()))


COMING_FROM = {
    "coming-from-llama-cpp.md": llama_cpp.LISTS,
    "coming-from-ollama.md": ollama.LISTS,
    "coming-from-transformers.md": of_transformers.LISTS,
    "coming-from-vllm.md": vllm.LISTS,
}


def coming_from(name: str) -> Callable[[str], str]:
    """What puts the tables into a page about another program."""
    return lambda text: with_parts(text, parts(COMING_FROM[name]))


MADE: Mapping[str, Callable[[str], str]] = {
    "options.md": lambda _: options.page(),
    "settings.md": lambda _: settings.page(),
    "environment.md": lambda _: environment.page(),
    "http.md": lambda _: routes.page(),
    "images/batching.svg": lambda _: batching.picture(steps()),
    "continuous-batching.md": lambda text: with_parts(text, {"plans": batching.as_table(steps())}),
    "chatting.md": lambda text: with_parts(text, {"commands of chat": commands_of_chat()}),
    **{name: coming_from(name) for name in COMING_FROM},
}
"""File in docs/ → what makes its text anew, given the text that it has."""
