"""The files of deploy/ name metrics, options and files that there are."""

import json
import re
import shlex
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.serve.conftest import served
from tokenmill.cli.parser.command import Command

ROOT = Path(__file__).parents[3]
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
    assert '*.whl)[serve]"' in run and re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (health,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    assert "/health'" in health


def resources():
    """The objects of kubernetes.yaml, by their kinds; of several, the last."""
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def pod():
    """What kubernetes.yaml says of a pod, and of its container."""
    spec = resources()["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def commands():
    """The commands that the unit, the container and the pod start, without the program."""
    given = dict(instructions())
    (start,) = re.findall(r"^ExecStart=(.*)", (DEPLOY / "tokenmill.service").read_text(), re.MULTILINE)
    entry = json.loads(given["ENTRYPOINT"])
    return [shlex.split(start), entry + json.loads(given["CMD"]), entry + pod()[1]["args"]]


def options_of(command):
    """The options that a command gives to `tokenmill serve`, as that reads them."""
    program, verb, *arguments = command
    assert (program, verb) == ("/opt/tokenmill/bin/tokenmill", "serve")
    made = Command(verb)
    return made.context(made.parse(arguments)).values


@pytest.mark.parametrize("command", commands(), ids=["unit", "container", "pod"])
def test_what_is_started_has_options_that_there_are(command):
    assert options_of(command)["model"] == "smollm2-135m"


def test_a_pod_ends_when_its_requests_have():
    spec, container = pod()
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    drain_s = options_of(commands()[2])["drain"]
    assert spec["terminationGracePeriodSeconds"] > int(seconds) + drain_s
    readiness = container["readinessProbe"]
    noticed_s = readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
    assert int(seconds) > noticed_s


def test_the_probes_ask_what_the_server_answers_without_a_key(chat_model):
    _, container = pod()
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/ready", "liveness": "/health", "readiness": "/ready"}
    with served(chat_model, keys=("one-key",)) as server:
        for path in paths.values():
            answer = httpx2.get(f"{server.url}{path}", headers={"Host": "10.1.2.3:8000"}, timeout=60)
            assert answer.status_code == 200, path


def test_the_pod_fits_the_container_and_its_volumes():
    spec, container = pod()
    given = dict(instructions())
    assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == given["USER"]
    assert container["ports"][0]["containerPort"] == int(given["EXPOSE"])
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert set(given["VOLUME"].split()) <= mounted.keys()
    claims = {each["metadata"]["name"] for each in resources()["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert set(mounted.values()) == claims | {each["name"] for each in spec["volumes"]}
    keys = Path(options_of(commands()[2])["api_key_file"])
    assert mounted[str(keys.parent)] == "keys"
    labels = resources()["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        selector = each["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own schemas
def test_ray_serve_reads_its_file():
    from ray.serve.schema import ServeDeploySchema

    replicas = pytest.importorskip("tokenmill.scale.replicas")
    read = ServeDeploySchema.model_validate(yaml.safe_load((DEPLOY / "ray-serve.yaml").read_text()))
    (application,) = read.applications
    assert application.import_path == f"{replicas.__name__}:{replicas.app.__name__}"
    assert replicas.Arguments(**application.args).model == "smollm2-135m"
