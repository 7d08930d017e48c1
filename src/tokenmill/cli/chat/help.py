"""The text that `/help` shows in `chat`, as wide as the terminal."""

from textwrap import fill

from tokenmill.cli.parser.command import help_width

COMMANDS = {
    "/retry": "answer the last question again, with a new seed",
    "/continue": "go on with an answer that was stopped",
    "/edit TEXT": "ask the last question anew, with this text or in an editor",
    "/undo": "forget the last question and its answer, or take back /clear, /system, /edit or /compact",
    "/history": "show the messages so far",
    "/clear": "forget everything but the system message",
    "/compact": "drop the oldest turns, to make room",
    "/system TEXT": "set the system message, and begin anew",
    "/save FILE": "keep the conversation, its computed rows too",
    "/open FILE": "go on with a saved conversation",
    "/fork": "try something; /back returns to this point",
    "/back": "drop what came since /fork",
    "/model NAME": "go on with another model",
    "/set NAME VALUE": "change temperature, top_p, seed, max_new_tokens, ...",
    "/show": "show model, settings and system message; /show template the template",
    "/stats": "show tokens, cache and settings",
    "/help": "show this text (also /?)",
    "/bye": "leave (also /quit, /exit, Ctrl-D)",
}
AFTER = (
    'Ctrl-C stops an answer. A message of several lines: end a line with \\, or type """ before and after it, or paste '
    "it. A space before / makes it a message."
)


def chat_help() -> str:
    """Every command, and how messages are typed."""
    width, indent = help_width(), 2 + max(map(len, COMMANDS)) + 2
    lines = [
        fill(f"  {name}".ljust(indent) + text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
        for name, text in COMMANDS.items()
    ]
    return "\n".join(["Type a message, or one of these:", *lines, fill(AFTER, width, break_on_hyphens=False)])
