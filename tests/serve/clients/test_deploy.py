"""The files of deploy/, read by the programs that they are for; and streams through a proxy, as they come."""

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.empty import check_empty
from tests.ports import unused_port
from tests.serve.conftest import hold, served

pytestmark = pytest.mark.clients

DEPLOY = Path(__file__).parents[3] / "deploy"
KEY = {"Authorization": "Bearer one-key"}
BODY = {"prompt": "w1 w2", "max_tokens": 90, "temperature": 0}


def program(name):
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    assert found, f"there is no {name}: `make test-clients` says how to get it"
    return found


def check(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit(tmp_path):
    text = (DEPLOY / "tokenmill.service").read_text()
    unit = tmp_path / "tokenmill.service"
    unit.write_text(text.replace("/opt/tokenmill/bin/tokenmill", shutil.which("true")))
    check(program("systemd-analyze"), "verify", "--man=no", unit)


def test_the_container():
    """hadolint, but for two of its rules: Debian's versions go away once they are fixed, and TOKENMILL is no token."""
    hadolint = program(str(Path(sys.executable).parent / "hadolint"))
    check(hadolint, "--ignore", "DL3008", "--ignore", "DL3064", DEPLOY / "Containerfile")


def test_kubernetes():
    """Every object of the manifest, against the schemas of the newest version that is known, and of an older one."""
    import kubernetes_validate

    for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        for version in (kubernetes_validate.latest_version(), "1.29"):
            kubernetes_validate.validate(each, version, strict=True)


def test_prometheus(tmp_path):
    shutil.copy(DEPLOY / "tokenmill-alerts.yml", tmp_path)
    (tmp_path / "key").write_text("one-key")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        (DEPLOY / "prometheus.yml").read_text().replace("/etc/prometheus/tokenmill-key", f"{tmp_path}/key")
    )
    check(program("promtool"), "check", "config", config)


def test_what_prometheus_reads_is_well_formed(server):
    assert httpx2.post(f"{server.url}/v1/completions", json={"prompt": "w1"}, timeout=60).status_code == 200
    text = server.driver.metrics.text()
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    # It exits with 3 because it dislikes the colons of vLLM's names, and with 1 for what it cannot read.
    assert done.returncode in (0, 3), done.stderr


def nginx(folder, port, upstream):
    """The command that runs nginx with deploy/nginx.conf at a port."""
    text = (DEPLOY / "nginx.conf").read_text()
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};").replace(
        "server 127.0.0.1:8000;", f"server {upstream};"
    )
    (folder / "tokenmill.conf").write_text(text)
    temporary = " ".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/tokenmill.conf; }}\n"
    )
    command = [program("nginx"), "-p", folder, "-e", folder / "errors", "-c", main]
    check(*command, "-t")
    return command


def caddy(folder, port, upstream):
    """The command that runs Caddy with deploy/Caddyfile at a port."""
    text = (DEPLOY / "Caddyfile").read_text()
    text = text.replace("llm.example.org", f"http://127.0.0.1:{port}").replace("127.0.0.1:8000", upstream)
    config = folder / "Caddyfile"
    config.write_text("{\n\tadmin off\n}\n" + text)
    check(program("caddy"), "validate", "--config", config, "--adapter", "caddyfile")
    return [program("caddy"), "run", "--config", config, "--adapter", "caddyfile"]


@contextmanager
def proxied(make, folder, server):
    """The URL of a proxy before a server."""
    port = unused_port()
    command = make(folder, port, re.sub("^http://", "", server.url))
    home = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    process = subprocess.Popen(command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url, ends_s = f"http://127.0.0.1:{port}", time.monotonic() + 20
        while True:
            try:
                httpx2.get(f"{url}/health", timeout=5)
                break
            except httpx2.TransportError:
                assert process.poll() is None and time.monotonic() < ends_s
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("make", [nginx, caddy])
def test_a_stream_passes_a_proxy_as_it_comes(chat_model, tmp_path, make):
    """The server makes a few steps and waits until the client has left: a proxy that holds anything back would hang."""
    with served(chat_model, keys=("one-key",)) as server, proxied(make, tmp_path, server) as url:
        hold(server.driver)
        with httpx2.stream(
            "POST", f"{url}/v1/completions", json=BODY | {"stream": True}, headers=KEY, timeout=20
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert next(response.iter_lines()).startswith("data: {")
        ends_s = time.monotonic() + 60  # a proxy that has read all closes without a reset: the next pings tell
        while server.admission.num_open or server.driver.core.trackers:
            assert time.monotonic() < ends_s, "the proxy does not tell that the client has left"
            time.sleep(0.01)
        check_empty(server.driver.core)


@pytest.mark.parametrize("make", [nginx, caddy])
def test_a_proxy_changes_nothing_else(chat_model, tmp_path, make):
    with (
        served(chat_model, {"max_sequences": 1}, keys=("one-key",), max_queued=0) as server,
        proxied(make, tmp_path, server) as url,
        httpx2.Client(base_url=url, timeout=60) as http,
    ):
        done = http.post("/v1/completions", json=BODY, headers=KEY)
        assert done.json()["usage"]["completion_tokens"] == 90 and done.headers["x-request-id"]
        assert http.get("/v1/models").status_code == 401
        assert http.get("/metrics", headers=KEY).status_code == 404
        assert http.post("/v1/completions", json=" " * 5_000_000, headers=KEY).status_code == 413
        with server.admission.slots(1):
            refused = http.post("/v1/completions", json=BODY, headers=KEY)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
