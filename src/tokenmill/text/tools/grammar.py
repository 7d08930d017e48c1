"""The grammar of an answer with calls, in llguidance's Lark: made of the format, the functions and the choice.

Text goes on until a mark stands there; from it on only calls of the given functions, with their arguments, are
possible, and after them the end. Thinking, where the model may or must begin with it, is part of the grammar.
"""

from collections.abc import Mapping, Sequence

from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.functions import Choice, Function
from tokenmill.text.tools.lark import ANYTHING, Lark, choice
from tokenmill.text.tools.tool_format import ToolFormat


def calls_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    wanted: Choice,
    *,
    control: Mapping[str, int],
    thinking: Thinking | None = None,
    is_open: bool = False,
) -> str:
    """The text of the grammar. functions: those that may be called. control: spelling → id of the control tokens.

    thinking: the marks, if the model thinks before it answers. is_open: the answer begins inside thinking.
    """
    lark = Lark(control)
    start = lark.rule("answer", _answer(lark, form, functions, wanted, thinking))
    if thinking is not None:
        start = think_first(lark, thinking, start, is_open=is_open, gap='("\\n" | "\\n\\n")?')
    return f"{lark}start: {start}\n"


def think_first(lark: Lark, thinking: Thinking, answer: str, *, is_open: bool, gap: str) -> str:
    """An expression for an answer after thinking: where is_open, after its closing mark; else with or without any."""
    anything = lark.rule("THOUGHTS", f"/{ANYTHING}/")
    closed = f"{lark.until('thought', thinking.end, anything)} {gap}"
    if is_open:
        return f"{closed} {answer}"
    begin = lark.literal(thinking.begin)
    return f"({begin} {closed})? {answer}"


def _answer(
    lark: Lark, form: ToolFormat, functions: Sequence[Function], wanted: Choice, thinking: Thinking | None
) -> str:
    """An expression for text or calls, whatever the choice allows."""
    bodies = [form.body.rule(lark, function, f"call_{number}") for number, function in enumerate(functions)]
    body = lark.rule("call", choice(bodies))
    marks = form.marks(functions)
    is_one = not wanted.parallel
    after_mark = [lark.literal(part) for part in (form.opening.removeprefix(marks[0]), form.closing)]
    rest = f"{after_mark[0]} {_repeated(body, form.comma, lark, is_one)} {after_mark[1]}"
    rest = lark.rule("after_mark", rest)
    more = "" if is_one or form.comma is not None else f" ({lark.literal(form.lead + marks[0])} {rest})*"
    if wanted.mode == "required":
        return f"{lark.literal(marks[0])} {rest}{more}"
    unlike = [thinking.begin] if thinking is not None and thinking.begin not in lark.control else []
    text = lark.text(without=unlike)
    return f"{text} | {lark.until('text_to_mark', marks[0], text)} {rest}{more}"


def _repeated(body: str, comma: str | None, lark: Lark, is_one: bool) -> str:
    return body if comma is None or is_one else f"{body} ({lark.literal(comma)} {body})*"
