"""The files of deploy/ name metrics, options and files that there are."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from tokenmill.cli.main import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"tokenmill:\w+")


@pytest.fixture(scope="module")
def there(http_text):
    """Names of all samples that /metrics can have."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)", http_text, re.MULTILINE):
        found |= {name} if kind != "histogram" else {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return found


@pytest.fixture(scope="module")
def http_text(server):
    return server.driver.metrics.text().decode()


def test_the_dashboard_asks_for_metrics_that_there_are(there):
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [entry["query"] for entry in dashboard["templating"]["list"] if entry["type"] == "query"]
    named = {name for each in asked for name in METRIC.findall(each)}
    assert len(named) >= 20 and not named - there


def test_so_do_the_alerts(there):
    (group,) = yaml.safe_load((DEPLOY / "tokenmill-alerts.yml").read_text())["groups"]
    named = {name for rule in group["rules"] for name in METRIC.findall(rule["expr"])}
    assert named and not named - there
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert config["rule_files"] == ["tokenmill-alerts.yml"]
    assert config["scrape_configs"][0]["metrics_path"] == "/metrics"


def instructions():
    """The instructions of the Containerfile: pairs of a word and what follows it."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_container_copies_files_that_there_are():
    copied = [shlex.split(rest) for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    sources = [source for words in copied for source in words[:-1]]
    assert {"src", "native", "hatch_build.py"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source


def test_the_container_installs_what_there_is():
    run = " ".join(rest for word, rest in instructions() if word == "RUN")
    assert '".[serve]"' in run and re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (health,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    assert "/health'" in health


def commands():
    """The commands that the unit and the container start, without the program."""
    given = dict(instructions())
    (start,) = re.findall(r"^ExecStart=(.*)", (DEPLOY / "tokenmill.service").read_text(), re.MULTILINE)
    return [shlex.split(start), json.loads(given["ENTRYPOINT"]) + json.loads(given["CMD"])]


@pytest.mark.parametrize("command", commands(), ids=["unit", "container"])
def test_what_is_started_has_options_that_there_are(command):
    program, verb, *arguments = command
    assert (program, verb) == ("/opt/tokenmill/bin/tokenmill", "serve")
    group = typer.main.get_command(app)
    _, made, _ = group.resolve_command(typer.Context(group), [verb])
    assert made.make_context(verb, arguments).params["model"] == "smollm2-135m"
