"""Answers of `chat` on a terminal: rendered Markdown, each block printed once, no control codes of the model."""

import io
import re

import pytest
from rich.console import Console

from tests.cli.terminal import Terminal
from tests.word_model import save_chat_model
from tokenmill.cli.chat.rendered import RenderedMarkdown
from tokenmill.cli.process.display import visible


def written(text, width=40, **settings):
    """The scrollback when the text came character by character, without what was erased again."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=6, force_terminal=True, **settings)
    rendered = RenderedMarkdown(console)
    with rendered:
        for character in text:
            rendered.write(character)
    return file.getvalue(), screen(file.getvalue())


def screen(output):
    """The lines that a terminal of any height shows: cursor up, erase line and carriage return are obeyed."""
    lines, row = [""], 0
    for escape, text in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", output):
        if escape == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif escape.endswith("A"):
            row -= int(escape[2:-1] or 1)
        elif escape.endswith("K"):
            lines[row] = ""
        lines[row] += text
    return "\n".join(line.rstrip() for line in lines).rstrip()


def test_blocks_are_rendered_once_and_wrap_at_words():
    text = "Words **that are bold** and wrap at a word's end.\nA line.\n\n- one\n- two\n\n```\na  b\n```\n\n"
    table = "| c | d |\n|---|---|\n| 1 | 2 |\n\n"
    _, shown = written(f"{text}{table}end")
    above = "Words that are bold and wrap at a word's\nend.\nA line.\n\n • one\n • two\n\na  b\n\n"
    assert shown == above + " c  d\n ────\n 1  2\n\nend"


@pytest.mark.parametrize(
    ("markdown", "mark"),
    [
        ("```python\n{code}\n```", ""),
        ("    {code}", ""),
        ("- item\n\n  ```\n  {code}\n  ```", "   "),
        ("12. item\n\n    ```\n    {code}\n    ```", "    "),
        ("> ```\n> {code}\n> ```", "▌ "),
    ],
)
def test_code_is_never_wrapped_nor_cut_wherever_it_stands(markdown, mark):
    code = "total = " + " + ".join(f"value_{number}" for number in range(12))
    _, shown = written(f"before\n\n{markdown.format(code=code)}\n\nafter")
    assert mark + code in shown.split("\n")


@pytest.mark.parametrize(
    "text",
    ["<think>why</think>", "![picture](http://a/b)", "[a]: http://b", "a&b <br> x", "| a |\n|---|\n| " + "x" * 70],
)
def test_nothing_that_the_model_wrote_vanishes(text):
    shown = re.sub(r"\s", "", written(text)[1])
    for word in re.findall(r"\w+", text):
        assert word in shown


def test_a_block_that_is_higher_than_the_terminal_is_whole_in_the_end():
    lines = [f"line {number}" for number in range(30)]
    assert written("\n".join(lines))[1].split("\n") == lines


@pytest.mark.parametrize("code", ["\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\x08", "\x7f", "&#27;[31m", "`\x1b[31m`"])
def test_no_control_code_of_the_model_reaches_the_terminal(code):
    harmless = visible(f"a{code}b")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", harmless)
    output, _ = written(f"a{code}b\n", color_system=None)
    assert not re.search(r"\x1b(?!\[(\?25[lh]|\d*[AK]))|[\x07\x08\x7f-\x9f]", output)


def test_no_color_is_honoured_and_the_cursor_comes_back(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    output, _ = written("`code` and **bold**\n")
    assert not re.search(r"\x1b\[(\d+;)*(3\d|4\d|9\d)(;\d+)*m", output)
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")


def test_ctrl_c_keeps_what_was_shown_and_gives_the_cursor_back():
    file = io.StringIO()
    rendered = RenderedMarkdown(Console(file=file, width=40, force_terminal=True))
    with pytest.raises(KeyboardInterrupt), rendered:
        rendered.write("half an **ans")
        raise KeyboardInterrupt
    assert screen(file.getvalue()) == "half an **ans"
    assert "ans " not in file.getvalue()  # padding would carry the terminal's ^C into another line
    assert file.getvalue().rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, env, lives", [((), {}, True), (("--plain",), {}, False), ((), {"TERM": "dumb"}, False)]
)
def test_chat_renders_on_a_terminal_unless_it_is_told_not_to(tmp_path, options, env, lives):
    told = "import tokenmill.cli.chat.rendered as r\nwrite = r.RenderedMarkdown.write\n" + (
        "def said(*a):\n    print('RENDERED')\n    write(*a)\nr.RenderedMarkdown.write = said\n"
    )
    env = {"TOKENMILL_DATA": str(tmp_path / "data")} | env
    with Terminal("chat", save_chat_model(tmp_path), "-n", "2", *options, prepare=told, env=env) as terminal:
        terminal.type("w1 w2")
        assert ("RENDERED" in terminal.type("/bye")) is lives
