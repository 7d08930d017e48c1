"""What torchrun sets is checked before anybody is waited for."""

import socket

import pytest

from tests.parallel.eager_in_threads import save_with_three_kv_heads
from tokenmill import ConfigError, load
from tokenmill.parallel.rendezvous import meet_torchrun

RIGHT = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"RANK": "2"}, "RANK = 2 is not allowed: 0 to 1, because WORLD_SIZE is 2"),
        ({"RANK": "-1"}, "RANK = '-1'"),
        ({"WORLD_SIZE": "3"}, "tensor_parallel = 2 is not allowed: 3"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT = 'http'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT = 99999 is not allowed: 1 to 65535"),
        ({"MASTER_ADDR": "no machine"}, "MASTER_ADDR = 'no machine'"),
    ],
)
def test_a_wrong_variable_is_named(wrong, said):
    with pytest.raises(ConfigError, match=said):
        meet_torchrun(2, {**RIGHT, **wrong})


def test_a_port_in_use_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in {**RIGHT, "MASTER_PORT": str(server.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=r"MASTER_PORT = '127.0.0.1:.* is not allowed: an address where"):
            meet_torchrun(2)


def test_a_load_that_did_not_meet_the_others_is_not_taken_for_one_that_did(models, monkeypatch):
    path = save_with_three_kv_heads("llama", models)
    for name, value in {**RIGHT, "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        with pytest.raises(ConfigError, match="because torchrun has started so many processes"):
            load(path, program="eager", tensor_parallel=2)
