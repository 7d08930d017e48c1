"""`tokenmill launch`: a coding agent is told to ask a server of tokenmill, for as long as it runs."""

import json as json_of
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from tokenmill.bench.address import check_address, check_key, endpoint, headers_of
from tokenmill.cli.launch.agents import AGENTS, FILE, AskedModel, KnownAgent, Launch
from tokenmill.cli.parser.options import OUTPUT, QUIET, argument, option
from tokenmill.cli.process.display import echo, remark
from tokenmill.errors import ConfigError
from tokenmill.value_reader import check_choice

EXAMPLES = (
    "tokenmill serve Qwen/Qwen3-8B --max-length 65536",
    "tokenmill launch claude",
    'tokenmill launch codex --model coder -- exec "Write hello.py."',
)
AGENT, SERVER = "Agent", "Server"
SHORT = 16_384
"""Tokens of a context in which the first request of an agent, 8,000 to 30,000 of them, hardly fits."""
TIMEOUT_S = 10.0


def command(
    agent: str = argument(..., "AGENT", f"{', '.join(AGENTS)}.", AGENT),
    arguments: list[str] | None = argument(None, "ARGS", "Arguments of the agent, behind --.", AGENT),
    url: str = option("http://127.0.0.1:8000", "Where the server answers.", SERVER, metavar="URL"),
    model: str | None = option(None, "Name of the model. Default: the first that the server has.", SERVER),
    api_key: str | None = option(None, "Key of the server.", SERVER, variable="TOKENMILL_API_KEY"),
    show: bool = option(False, "Print the variables and the command, and start nothing.", OUTPUT),
    quiet: bool = QUIET,
) -> None:
    """Start a coding agent that asks a server of tokenmill, which runs already.

    The agent gets variables, arguments or a file of settings for as long as it runs; your own settings stay as they
    are. Its exit code is the exit code.
    """
    check_choice("agent", agent, tuple(AGENTS))
    chosen, target = AGENTS[agent], _target(url, model, api_key or "")
    program = shutil.which(chosen.program)
    if program is None and not show:
        raise ConfigError("agent", agent, f"an agent that is installed: {chosen.install}", "AGENT")
    if target.context < SHORT and not quiet:
        remark(
            f"warning: a text may have {target.context} tokens, and an agent's first request has 8,000 to 30,000: "
            "start the server with --max-length 65536"
        )
    launch = chosen.told(target)
    if show:
        _show(chosen, launch, arguments or [])
        return
    with _written(launch.file) as file:
        words = [program or chosen.program, *_filled(launch.arguments, file), *(arguments or [])]
        code = _run(words, _environment(chosen, launch))
    sys.exit(code)


def _target(url: str, model: str | None, key: str) -> AskedModel:
    """Ask the server for its models. ConfigError where it does not answer, or has no such model."""
    check_address("--url", url, "--api-key")
    check_key("--api-key", key)
    if (parts := urlsplit(url)).query or parts.fragment:
        raise ConfigError("url", url, "an address without a query", "--url")
    found = [each for each in _models(url, key) if "completion" in (each.get("capabilities") or ["completion"])]
    names = [str(each["id"]) for each in found]
    if not names:
        raise ConfigError("url", url, "a server with a model that writes texts", "--url")
    if model is not None:
        check_choice("model", model, names)
    card = found[names.index(model or names[0])]
    base = endpoint(url, "").removesuffix("/v1/")
    return AskedModel(base, str(card["id"]), key, _length(card.get("max_model_len")))


def _length(given: Any) -> int:
    """Read the length of a text; one that is not told is taken for long enough."""
    return given if type(given) is int else SHORT


def _models(url: str, key: str) -> list[dict[str, Any]]:
    try:
        opener = build_opener(ProxyHandler({}))  # the server is here, whatever HTTP_PROXY says
        asked = Request(endpoint(url, "models"), headers=headers_of(key))  # noqa: S310  (http or https, as was checked)
        with opener.open(asked, timeout=TIMEOUT_S) as answer:
            listed = json_of.loads(answer.read())["data"]
            return [each for each in listed if isinstance(each, dict) and isinstance(each.get("id"), str)]
    except HTTPError as error:
        how = "a server whose key is given: --api-key" if error.code == 401 else f"a server of models ({error})"
        raise ConfigError("url", url, how, "--url") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "reason", None) or error
        allowed = f"a server that answers ({why}): start one with `tokenmill serve MODEL`"
        raise ConfigError("url", url, allowed, "--url") from None


def _environment(agent: KnownAgent, launch: Launch) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in agent.without}
    # Proxies are for other hosts: agents in JavaScript and Python ask the server through them otherwise.
    local = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost"]))
    return {**kept, "NO_PROXY": local, "no_proxy": local, **launch.environment}


@contextmanager
def _written(text: str) -> Iterator[str]:
    """Write a file of settings, which only its owner reads, and remove it at the end."""
    if not text:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="tokenmill-launch-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        yield str(file)


def _filled(arguments: tuple[str, ...], file: str) -> list[str]:
    return [file if word == FILE else word for word in arguments]


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Run a program to its end; return its exit code. Ctrl-C is for the program, which may mean something by it."""
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}  # not SIG_IGN, which would be inherited
    with subprocess.Popen(words, env=environment) as process:  # noqa: S603  (the agent that the user names)
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, lambda found, _: process.send_signal(found))
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _show(agent: KnownAgent, launch: Launch, arguments: list[str]) -> None:
    for name in agent.without:
        echo(f"unset {name}")
    for name, value in launch.environment.items():
        echo(f"export {name}={shlex.quote(value)}")
    if launch.file:
        echo(f"# config.yaml: {launch.file}")
    echo(shlex.join([agent.program, *_filled(launch.arguments, "config.yaml"), *arguments]))
