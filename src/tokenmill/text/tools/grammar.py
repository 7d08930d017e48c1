"""The grammar of an answer with calls, in llguidance's Lark: made of the format, the functions and the choice.

Text goes on until a mark stands there; from it on only calls of the given functions, with their arguments, are
possible, and after them the end. Thinking, where the model may or must begin with it, is part of the grammar.
"""

from collections.abc import Mapping, Sequence

from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.lark import ANYTHING, FORCING, Lark, choice
from tokenmill.text.tools.tool_format import ToolFormat

GAP = r'("\n" | "\n\n")?'


def calls_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    wanted: ToolChoice,
    *,
    control: Mapping[str, int],
    thinking: Thinking | None = None,
    is_open: bool = False,
    text: str | None = None,
) -> str:
    """Return the text of the grammar. functions: all that may be called. control: spelling → id of the control tokens.

    thinking: the marks, if the model thinks before it answers. is_open: the answer begins inside thinking. text: an
    expression for an answer without calls, in the place of any text.
    """
    lark, head = Lark(control), "" if any(each.lark for each in functions) else FORCING
    if form.answer is not None:
        start = form.answer(lark, functions, wanted, text)
    else:
        start = lark.rule("answer", _answer(lark, form, functions, wanted, thinking, text))
        if thinking is not None:
            start = think_first(lark, thinking, start, is_open=is_open)
    return f"{head}{lark}start: {start}\n"


def think_first(lark: Lark, thinking: Thinking, answer: str, *, is_open: bool, gap: str = GAP) -> str:
    """Return an expression for an answer after thinking: where is_open, after its closing mark; else with or without
    any.

    gap: an expression for what stands behind that mark; a line break or two, or nothing.
    """
    anything = lark.rule("THOUGHTS", f"/{ANYTHING}/")
    closed = f"{lark.until('thought', thinking.end, anything)} {gap}"
    if is_open:
        return f"{closed} {answer}"
    begin = lark.literal(thinking.begin)
    return f"({begin} {closed})? {answer}"


def _answer(
    lark: Lark,
    form: ToolFormat,
    functions: Sequence[Function],
    wanted: ToolChoice,
    thinking: Thinking | None,
    own_text: str | None,
) -> str:
    """Return an expression for text or calls, whatever the choice allows."""
    bodies = [form.body.rule(lark, function, f"call_{number}") for number, function in enumerate(functions)]
    is_one = form.is_single or not wanted.parallel
    calls = _calls(lark, form, lark.rule("call", choice(bodies)), functions, is_one=is_one)
    mark = lark.literal(form.mark)
    if wanted.mode == "required":
        return f"{mark} {calls}"
    if own_text is not None:
        return f"{own_text} | {mark} {calls}"
    unlike = [thinking.begin] if thinking is not None and thinking.begin not in lark.control else []
    if form.is_alone:
        unlike += form.marks(function.name for function in functions)
        return f"{lark.text(without=unlike)} | {calls}"
    text = lark.text(without=unlike)
    return f"{text} | {lark.until('text_to_mark', form.mark, text)} {calls}"


def _calls(lark: Lark, form: ToolFormat, call: str, functions: Sequence[Function], *, is_one: bool) -> str:
    """Return an expression for one or more calls, after the mark of the first."""
    opening, closing = lark.literal(form.opening.removeprefix(form.mark)), lark.literal(form.closing)
    if form.comma is None:
        rest = lark.rule("after_mark", f"{opening} {call} {closing}")
        return rest if is_one else f"{rest} ({lark.literal(form.lead + form.mark)} {rest})*"
    first = f"{opening} {call}"
    if form.is_alone:  # one terminal with the opening, since a shorter one would go on as text
        before = [form.body.rule(lark, each, f"call_{number}", form.opening) for number, each in enumerate(functions)]
        first = choice(before)
    more = "" if is_one else f"({lark.literal(form.comma)} {call})*"
    return f"{first} {more} {closing}"
