"""The same scripted task by `tokenmill launch`, which tells each agent where the server is."""

import json

import pytest

from tests.serve.agents.test_text_agents import QUIET, WHOLE_FILE
from tests.serve.agents.test_tool_agents import CHAT, DONE, PROGRAM, RUN, WRITE, check
from tests.serve.scripted import call

pytestmark = pytest.mark.clients
TASK = "Write hello.py."


def test_claude_code(desk):
    run = "I run it.\n" + call("Bash", command=RUN, description="Run it")
    with desk([call("Bash", command=WRITE, description="Write the program"), run, DONE]) as at:
        assert DONE in at.launched("claude", "-p", TASK, "--allowedTools", "Bash", ANTHROPIC_API_KEY="of-another")
        check(at, "/v1/messages")


def test_codex(desk):
    with desk([call("exec_command", cmd=WRITE), call("exec_command", cmd=RUN), DONE]) as at:
        assert DONE in at.launched("codex", "exec", "--skip-git-repo-check", "-s", "danger-full-access", TASK)
        check(at, "/v1/responses")
    assert not (at.home / ".codex" / "config.toml").exists()


def test_opencode(desk):
    write = call("write", content=PROGRAM, filePath="hello.py")
    with desk([write, call("bash", command=RUN), DONE]) as at:
        (at.home / ".config" / "opencode").mkdir()
        own = at.home / ".config" / "opencode" / "opencode.json"
        own.write_text(json.dumps({"permission": {"*": "allow"}}))
        at.launched("opencode", "run", TASK)
        check(at, CHAT)
        assert json.loads(own.read_text()).keys() <= {"permission", "$schema"}  # which OpenCode adds


def test_qwen_code(desk):
    run = call("run_shell_command", command=RUN, is_background=False)
    with desk(answers := ["", "", run, DONE]) as at:
        answers[1] = call("write_file", file_path=str(at.folder / "hello.py"), content=PROGRAM)
        assert DONE in at.launched("qwen", "-y", "-p", TASK)
        check(at, CHAT)


def test_mini_swe_agent(desk):
    with desk(
        [call("bash", command=each) for each in (WRITE, RUN, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]
    ) as at:
        more = ("--cost-limit", "0", "-o", str(at.home / "trajectory.json"))
        at.launched("mini", "-t", TASK, "--yolo", "--exit-immediately", *more)
        check(at, CHAT)


def test_aider(desk):
    with desk([WHOLE_FILE] * 9, mark=TASK) as at:
        at.launched("aider", *QUIET, "--edit-format", "whole", "--message", TASK, "--yes-always")
        assert at.output("python3", "hello.py") == "Hello, mill!\n"
        at.check(CHAT, 1, mark=TASK)


def test_continue(desk):
    with desk([call("Bash", command=WRITE), call("Bash", command=RUN), DONE]) as at:
        assert DONE in at.launched("continue", "--auto", "-p", TASK)
        check(at, CHAT)
