"""The costliest of what torch ran, and marks of the forward in its trace."""

import os
from types import SimpleNamespace

import pytest
import torch

from tokenmill.measure.operations import Operation, Watch, costliest
from tokenmill.measure.trace import FORWARD


def event(key, cpu_us=0.0, device_us=0.0, device="CPU", count=1, mark=False):
    return SimpleNamespace(
        key=key,
        count=count,
        self_cpu_time_total=cpu_us,
        self_device_time_total=device_us,
        device_type=SimpleNamespace(name=device),
        is_user_annotation=mark,
    )


def test_the_costliest_on_a_cpu():
    events = [
        event("b", 1000, count=2),
        event("a", 3000),
        event(FORWARD, 9e6),
        event("mark", 9e6, mark=True),
        event("c"),
    ]
    assert costliest(events, 2) == [Operation("a", 1, 3.0, 0.75), Operation("b", 2, 1.0, 0.25)]
    assert [one.name for one in costliest(events, 9)] == ["a", "b", "c"]


def test_with_a_gpu_its_kernels_alone():
    events = [
        event("launch", 9000),
        event("kernel", 5, 500, "CUDA", 3),
        event("idle", 7, 0, "CUDA"),
        event("on", 5, 700),
    ]
    assert costliest(events, 9) == [Operation("kernel", 3, 0.5, 1.0)]


def test_nothing_costs_nothing():
    assert costliest([], 3) == []
    assert costliest([event("x")], 3) == [Operation("x", 1, 0.0, 0.0)]


def test_a_watched_product_is_found_with_its_mark(monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    table = torch.ones(64, 64)
    with Watch(torch.device("cpu")) as watch:
        watch.leave_forward()  # it never began
        watch.enter_forward()
        table @ table
    assert os.environ["KINETO_LOG_LEVEL"] == "6"
    assert "aten::mm" in {one.name for one in watch.operations(5)} and len(watch.operations(1)) == 1
    names = [one.get("name") for one in watch.trace()["traceEvents"]]
    assert names.count(FORWARD) == 1


def test_a_mark_ends_when_the_forward_does(monkeypatch):
    ended = []
    watch = Watch(torch.device("cpu"))
    monkeypatch.setattr(
        "tokenmill.measure.operations.record_function",
        lambda name: SimpleNamespace(__enter__=lambda: ended.append(name), __exit__=lambda *_: ended.append("end")),
    )
    watch.enter_forward()
    watch.leave_forward()
    watch.leave_forward()
    assert ended == [FORWARD, "end"]


@pytest.mark.parametrize(("device", "kinds"), [("cpu", ["CPU"]), ("cuda", ["CPU", "CUDA"])])
def test_what_is_watched(monkeypatch, device, kinds):
    asked = {}
    monkeypatch.setattr("tokenmill.measure.operations.profile", lambda **given: asked.update(given))
    Watch(torch.device(device))
    assert [kind.name for kind in asked["activities"]] == kinds
    assert asked["profile_memory"] is True and asked["acc_events"] is True
