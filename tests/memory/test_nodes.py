"""Memory nodes as Linux tells them, in a folder of the test's own."""

import os

import pytest

from tokenmill.memory import nodes

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux tells")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes what the system says: the processors of each node by its number; and those that this process may use."""

    def write(lists, usable):
        for number, text in lists.items():
            (tmp_path / f"node{number}").mkdir()
            (tmp_path / f"node{number}" / "cpulist").write_text(text + "\n")
        monkeypatch.setattr(nodes, "FOLDER", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(usable))

    return write


def test_the_processors_of_each_node_in_order(machine):
    machine({0: "0-3,8", 10: "12", 2: "4-7"}, range(16))
    assert nodes.memory_nodes() == [[0, 1, 2, 3, 8], [4, 5, 6, 7], [12]]


def test_only_what_the_process_may_use(machine):
    """A node may also have memory and no processors."""
    machine({0: "0-3", 1: "4-7", 2: ""}, [2, 3])
    assert nodes.memory_nodes() == [[2, 3]]


def test_a_system_that_says_nothing(machine):
    machine({}, [0])
    assert nodes.memory_nodes() == []
