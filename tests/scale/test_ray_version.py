"""Ray that is missing, or of a version that is not known to work."""

from importlib.metadata import PackageNotFoundError

import pytest

from tokenmill import TokenmillError
from tokenmill.scale import ray_version


@pytest.mark.parametrize("found", ["2.60.0", "2.60.0rc1", "2.71.3"])
def test_versions_that_work(found, monkeypatch):
    monkeypatch.setattr(ray_version, "version", lambda _: found)
    ray_version.check_ray()


@pytest.mark.parametrize("found", ["2.59.1", "1.13.0", "3.0.0", "nightly"])
def test_others_are_named(found, monkeypatch):
    monkeypatch.setattr(ray_version, "version", lambda _: found)
    with pytest.raises(TokenmillError, match=f"Ray {found} is installed; replicas need 2.60 or later, before 3: pip"):
        ray_version.check_ray()


def missing(name):
    raise PackageNotFoundError(name)


def test_a_server_without_ray_says_what_to_install(tm, monkeypatch, llama):
    monkeypatch.setattr(ray_version, "version", missing)
    code, _, errors = tm("serve", llama, "--replicas", 2)
    assert code == 2 and errors == "error: replicas need Ray: pip install 'tokenmill[ray]'\n"


def test_a_port_in_use_is_found_before_anything_is_loaded(tm, monkeypatch, llama):
    import socket

    monkeypatch.setattr(ray_version, "version", lambda _: "2.60.0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = tm("serve", "no-such-model", "--replicas", 2, "--port", port)
    assert code == 2 and f"port = {port} (set in --port) is not allowed" in errors
