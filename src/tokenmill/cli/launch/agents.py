"""Coding agents, and how each is told which server and model to ask: variables, arguments, or a file of settings.

Nothing of the user's own settings is written. A variable that would send a key of another service here is taken out.
Sources: the documents of each agent; tests/serve/agents runs them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_KEY = "none"  # for a server without keys, since no agent starts without one
OUTPUT_SHARE = 8  # of the context: what OpenCode keeps free for an answer


@dataclass(frozen=True)
class AskedModel:
    """The server and the model that an agent asks. url: of the server, without a path. key: "" for none. context: the
    tokens of a text.
    """

    url: str
    model: str
    key: str
    context: int

    @property
    def sent_key(self) -> str:
        """The key that the agent sends."""
        return self.key or NO_KEY


@dataclass(frozen=True)
class Launch:
    """The start of an agent. arguments: before the user's own. file: of settings, which is removed at the end; its
    path stands in the place of FILE in the arguments.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class KnownAgent:
    """An agent. program: its command. install: what brings it. told: how it is told. without: variables that it must
    not see, because they would choose another server or send another service's key.
    """

    program: str
    install: str
    told: Callable[[AskedModel], Launch]
    without: tuple[str, ...] = ()


FILE = "\0"  # which no argument can be


def _claude(target: AskedModel) -> Launch:
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL")
    return Launch(
        {
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": target.sent_key,  # of an API key it asks whether it may be used
            **dict.fromkeys((*names, "ANTHROPIC_DEFAULT_OPUS_MODEL"), target.model),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        ("--model", target.model),
    )


def _codex(target: AskedModel) -> Launch:
    provider = {
        "name": "tokenmill",
        "base_url": f"{target.url}/v1",
        "wire_api": "responses",
        "env_key": "TOKENMILL_API_KEY",
    }
    settings: dict[str, Any] = {"model": target.model, "model_provider": "tokenmill"}
    settings |= {f"model_providers.tokenmill.{name}": value for name, value in provider.items()}
    settings["model_context_window"] = target.context
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={_toml(value)}")]
    return Launch({"TOKENMILL_API_KEY": target.sent_key}, tuple(words))


def _toml(value: str | int) -> str:
    """Write a value as TOML, in which a text in quotes is written as in JSON, but for a control code."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _opencode(target: AskedModel) -> Launch:
    limit = {"context": target.context, "output": max(target.context // OUTPUT_SHARE, 1)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "tokenmill",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.sent_key},
        "models": {target.model: {"name": target.model, "limit": limit}},
    }
    name = f"tokenmill/{target.model}"
    settings = {"model": name, "small_model": name, "provider": {"tokenmill": provider}}
    return Launch({"OPENCODE_CONFIG_CONTENT": json.dumps(settings)})


def _qwen(target: AskedModel) -> Launch:
    return Launch(_openai(target, "OPENAI_BASE_URL") | {"OPENAI_MODEL": target.model}, ("--auth-type", "openai"))


def _aider(target: AskedModel) -> Launch:
    return Launch(_openai(target, "OPENAI_API_BASE"), ("--model", f"openai/{target.model}"))


def _mini(target: AskedModel) -> Launch:
    more = {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true"}
    return Launch(_openai(target, "OPENAI_API_BASE") | more, ("-m", f"openai/{target.model}"))


def _continue(target: AskedModel) -> Launch:
    model = {
        "name": target.model,
        "provider": "openai",
        "model": target.model,
        "apiBase": f"{target.url}/v1",
        "apiKey": target.sent_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
    }
    settings = {"name": "tokenmill", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Launch({}, ("--config", FILE), json.dumps(settings, ensure_ascii=False))  # JSON is YAML


def _openai(target: AskedModel, base: str) -> dict[str, str]:
    return {base: f"{target.url}/v1", "OPENAI_API_KEY": target.sent_key}


AGENTS = {
    "claude": KnownAgent(
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        _claude,
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
    ),
    "codex": KnownAgent("codex", "npm install -g @openai/codex", _codex),
    "opencode": KnownAgent("opencode", "npm install -g opencode-ai", _opencode),
    "qwen": KnownAgent("qwen", "npm install -g @qwen-code/qwen-code", _qwen),
    "aider": KnownAgent("aider", "pip install aider-chat", _aider, ("OPENAI_BASE_URL",)),
    "mini": KnownAgent("mini", "pip install mini-swe-agent", _mini, ("OPENAI_BASE_URL",)),
    "continue": KnownAgent("cn", "npm install -g @continuedev/cli", _continue),
}
