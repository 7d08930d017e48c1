"""Agents that call functions, each through the protocol that it speaks: a file is written, run and looked at."""

import json

import pytest

from tests.serve.scripted import call

pytestmark = pytest.mark.clients

CHAT = "/v1/chat/completions"
PROGRAM = 'def greet(name):\n    return f"Hello, {name}! <b>\\"ö\\"</b>"\n\n\nprint(greet("mill"))\n'
SAYS = 'Hello, mill! <b>"ö"</b>\n'
WRITE, RUN = f"cat > hello.py <<'EOF'\n{PROGRAM}EOF", "python3 hello.py"
# The arguments stand in the order of the schema's properties, which is the one that the grammar has.
DONE = "The program is written, and it says hello."


def check(at, route, count=3):
    """The files are what the script wanted, and the result of the last call was read."""
    assert at.output("python3", "hello.py") == SAYS
    assert any("Hello, mill!" in prompt for prompt in at.script.asked)  # which no call says
    at.check(route, count)


def test_claude_code(desk):
    run = "I run it.\n" + call("Bash", command=RUN, description="Run it")
    with desk([call("Bash", command=WRITE, description="Write the program"), run, DONE]) as at:
        assert DONE in at.documented("Claude Code", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")
        check(at, "/v1/messages")


def test_codex(desk):
    with desk([call("exec_command", cmd=WRITE), call("exec_command", cmd=RUN), DONE]) as at:
        assert DONE in at.documented("Codex", "-s", "danger-full-access")
        check(at, "/v1/responses")


def test_codex_applies_a_patch(desk):
    """It sends `apply_patch` as a custom tool, whose input is a text of a Lark grammar, for models that it knows."""
    lines = "".join(f"+{line}\n" for line in PROGRAM.splitlines())
    patch = f"*** Begin Patch\n*** Add File: hello.py\n{lines}*** End Patch"
    answers = [call("apply_patch", input=patch), call("exec_command", cmd=RUN), DONE]
    with desk(answers, name="gpt-5.5") as at:
        assert DONE in at.documented("Codex", "-s", "danger-full-access", "-m", "gpt-5.5")
        check(at, "/v1/responses")


def test_opencode(desk):
    write = call("write", content=PROGRAM, filePath="hello.py")
    with desk([write, call("bash", command=RUN), DONE]) as at:
        (at.home / ".config" / "opencode").mkdir()
        (at.home / ".config" / "opencode" / "opencode.json").write_text(json.dumps({"permission": {"*": "allow"}}))
        at.documented("OpenCode")
        check(at, CHAT)


def test_qwen_code(desk):
    """Its prompts begin with an answer of its own."""
    run = call("run_shell_command", command=RUN, is_background=False)
    with desk(answers := ["", "", run, DONE]) as at:
        answers[1] = call("write_file", file_path=str(at.folder / "hello.py"), content=PROGRAM)
        assert DONE in at.documented("Qwen Code")
        check(at, CHAT)


def test_mini_swe_agent(desk):
    with desk(
        [call("bash", command=each) for each in (WRITE, RUN, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]
    ) as at:
        more = ("--cost-limit", 0, "-o", at.home / "trajectory.json")
        at.documented("mini-swe-agent", *more, MSWEA_CONFIGURED="true")
        check(at, CHAT)


def test_continue(desk):
    with desk([call("Bash", command=WRITE), call("Bash", command=RUN), DONE]) as at:
        assert DONE in at.documented("Continue")
        check(at, CHAT)


def test_cline(desk):
    with desk([call("run_commands", commands=[WRITE]), call("run_commands", commands=[RUN]), DONE]) as at:
        at.documented("Cline", number=0)
        assert DONE in at.documented("Cline")
        check(at, CHAT)
