"""Agents that ask for plain text and find in it what to do: aider, and mini-swe-agent without tools."""

import pytest

from tests.serve.conftest import MODEL

pytestmark = pytest.mark.clients

ROUTE = "/v1/chat/completions"
PROGRAM = """def greet(name):
    return f"Hello, {name}!"


print(greet("mill"))
"""
WHOLE_FILE = f"I make the file.\n\nhello.py\n```python\n{PROGRAM}```\n"
EDIT = """I change the name.

hello.py
```python
<<<<<<< SEARCH
print(greet("mill"))
=======
print(greet("river"))
>>>>>>> REPLACE
```
"""


# Its prompts begin with a conversation as an example, so that its first question is a later turn.
def aider(at, task, *more, **environment):
    quiet = ("--no-show-model-warnings", "--no-check-update", "--no-analytics", "--no-gitignore", "--no-auto-commits")
    model = ("--model", f"openai/{MODEL}", "--message", task, "--yes-always", *quiet)
    return at.run("aider", *model, *more, OPENAI_API_BASE=f"{at.url}/v1", OPENAI_API_KEY="none", **environment)


def test_aider_writes_a_file(desk):
    with desk([WHOLE_FILE] * 9, mark="write it") as at:
        aider(at, "Please write it: hello.py.", "--edit-format", "whole")
        assert at.output("python3", "hello.py") == "Hello, mill!\n"
        at.check(ROUTE, 1, mark="write it")


def test_aider_edits_a_file(desk):
    with desk([EDIT] * 9, mark="change the name") as at:
        (at.folder / "hello.py").write_text(PROGRAM)
        aider(at, "Please change the name.", "--edit-format", "diff", "hello.py")
        assert at.output("python3", "hello.py") == "Hello, river!\n"
        at.check(ROUTE, 1, mark="change the name")


def test_mini_swe_agent_without_tools(desk):
    commands = (
        f"cat > hello.py <<'EOF'\n{PROGRAM}EOF",
        "python3 hello.py",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    )
    answers = [f"THOUGHT: Next.\n\n```mswea_bash_command\n{command}\n```" for command in commands]
    with desk(answers, mark="solve this issue") as at:
        options = ("--yolo", "--exit-immediately", "--cost-limit", 0, "-o", at.home / "trajectory.json")
        own = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "OPENAI_API_KEY": "none"}
        which = ("-m", f"openai/{MODEL}", "-c", "mini_textbased.yaml", "--model-class", "litellm_textbased")
        at.run("mini", *which, "-t", "Write it.", *options, OPENAI_API_BASE=f"{at.url}/v1", **own)
        assert at.output("python3", "hello.py") == "Hello, mill!\n"
        assert "Hello, mill!" in at.script.asked[-1]  # the result of the second command
        at.check(ROUTE, 3, mark="solve this issue")
