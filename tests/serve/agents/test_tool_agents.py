"""Agents that call functions, each through the protocol that it speaks: a file is written, run and looked at."""

import json

import pytest

from tests.serve.conftest import MODEL
from tests.serve.scripted import call

pytestmark = pytest.mark.clients

PROGRAM = 'def greet(name):\n    return f"Hello, {name}! <b>\\"ö\\"</b>"\n\n\nprint(greet("mill"))\n'
SAYS = 'Hello, mill! <b>"ö"</b>\n'
WRITE = f"cat > hello.py <<'EOF'\n{PROGRAM}EOF"
# The arguments stand in the order of the schema's properties, which is the one that the grammar has.
DONE = "The program is written, and it says hello."


def test_claude_code(desk):
    answers = [
        call("Bash", command=WRITE, description="Write the program"),
        "I run it.\n" + call("Bash", command="python3 hello.py", description="Run it"),
        DONE,
    ]
    with desk(answers) as at:
        own = {
            "ANTHROPIC_BASE_URL": at.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        said = at.run("claude", "-p", "Write hello.py.", "--allowedTools", "Bash", "--model", MODEL, **own)
        assert at.output("python3", "hello.py") == SAYS
        assert DONE in said and SAYS.strip() in at.script.asked[-1]
        at.check("/v1/messages", 3)


CODEX = """
model = "{model}"
model_provider = "own"
approval_policy = "never"
sandbox_mode = "danger-full-access"

[model_providers.own]
name = "tokenmill"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OWN_KEY"
"""


def codex(at, name=MODEL):
    (at.home / ".codex").mkdir()
    (at.home / ".codex" / "config.toml").write_text(CODEX.format(model=name, url=at.url))
    return at.run("codex", "exec", "--skip-git-repo-check", "Write hello.py.", OWN_KEY="none")


def test_codex_applies_a_patch(desk):
    """It sends `apply_patch` as a custom tool, whose input is a text of a Lark grammar, for models that it knows."""
    lines = "".join(f"+{line}\n" for line in PROGRAM.splitlines())
    patch = f"*** Begin Patch\n*** Add File: hello.py\n{lines}*** End Patch"
    answers = [call("apply_patch", input=patch), call("exec_command", cmd="python3 hello.py"), DONE]
    with desk(answers, name="gpt-5.5") as at:
        said = codex(at, "gpt-5.5")
        assert at.output("python3", "hello.py") == SAYS
        assert DONE in said and SAYS.strip() in at.script.asked[-1]
        at.check("/v1/responses", 3)


def test_codex(desk):
    answers = [call("exec_command", cmd=WRITE), call("exec_command", cmd="python3 hello.py"), DONE]
    with desk(answers) as at:
        said = codex(at)
        assert at.output("python3", "hello.py") == SAYS
        assert DONE in said and SAYS.strip() in at.script.asked[-1]
        at.check("/v1/responses", 3)


def test_opencode(desk):
    answers = [
        call("write", content=PROGRAM, filePath="hello.py"),
        call("bash", command="python3 hello.py", description="Run"),
        DONE,
    ]
    with desk(answers) as at:
        options = {"baseURL": f"{at.url}/v1", "apiKey": "none"}
        models = {MODEL: {"name": MODEL, "limit": {"context": 64000, "output": 4000}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "own", "options": options, "models": models}
        config = {
            "$schema": "https://opencode.ai/config.json",
            "provider": {"own": provider},
            "permission": {"*": "allow"},
        }
        (at.folder / "opencode.json").write_text(json.dumps(config))
        at.run("opencode", "run", "-m", f"own/{MODEL}", "Write hello.py.")
        assert at.output("python3", "hello.py") == SAYS
        at.check("/v1/chat/completions", 3)


def test_qwen_code(desk):
    # Its prompts begin with an answer of its own.
    answers = [
        "",
        call("write_file", file_path="{folder}/hello.py", content=PROGRAM),
        call("run_shell_command", command="python3 hello.py", is_background=False),
        DONE,
    ]
    with desk(answers) as at:
        answers[1] = answers[1].replace("{folder}", str(at.folder))
        own = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{at.url}/v1", "OPENAI_MODEL": MODEL}
        assert DONE in at.run("qwen", "--auth-type", "openai", "-y", "-p", "Write hello.py.", **own)
        assert at.output("python3", "hello.py") == SAYS
        at.check("/v1/chat/completions", 3)


def test_mini_swe_agent(desk):
    answers = [
        call("bash", command=each) for each in (WRITE, "python3 hello.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    ]
    with desk(answers) as at:
        options = ("--yolo", "--exit-immediately", "--cost-limit", 0, "-o", at.home / "trajectory.json")
        own = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "OPENAI_API_KEY": "none"}
        at.run("mini", "-m", f"openai/{MODEL}", "-t", "Write it.", *options, OPENAI_API_BASE=f"{at.url}/v1", **own)
        assert at.output("python3", "hello.py") == SAYS
        at.check("/v1/chat/completions", 3)
