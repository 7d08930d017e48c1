"""Agents that ask for plain text and find in it what to do: aider, and mini-swe-agent without tools."""

import pytest

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
QUIET = ("--no-show-model-warnings", "--no-check-update", "--no-analytics", "--no-gitignore", "--no-auto-commits")


# Aider's prompts begin with a conversation as an example, so that its first question is a later turn.


def test_aider_writes_a_file(desk):
    with desk([WHOLE_FILE] * 9, mark="Write hello.py.") as at:
        at.documented("Aider", *QUIET)
        assert at.output("python3", "hello.py") == "Hello, mill!\n"
        at.check(ROUTE, 1, mark="Write hello.py.")


def test_aider_edits_a_file(desk):
    with desk([EDIT] * 9, mark="Write hello.py.") as at:
        (at.folder / "hello.py").write_text(PROGRAM)
        at.documented("Aider", *QUIET, "--edit-format", "diff", "hello.py")
        assert at.output("python3", "hello.py") == "Hello, river!\n"
        at.check(ROUTE, 1, mark="Write hello.py.")


def test_mini_swe_agent_without_tools(desk):
    commands = (
        f"cat > hello.py <<'EOF'\n{PROGRAM}EOF",
        "python3 hello.py",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    )
    answers = [f"THOUGHT: Next.\n\n```mswea_bash_command\n{command}\n```" for command in commands]
    with desk(answers, mark="solve this issue") as at:
        textual = ("-c", "mini_textbased.yaml", "--model-class", "litellm_textbased", "--cost-limit", 0)
        at.documented("mini-swe-agent", *textual, "-o", at.home / "trajectory.json", MSWEA_CONFIGURED="true")
        assert at.output("python3", "hello.py") == "Hello, mill!\n"
        assert "Hello, mill!" in at.script.asked[-1]  # the result of the second command
        at.check(ROUTE, 3, mark="solve this issue")
