"""Devices by name: what is known of this machine without torch, and what torch is asked."""

import sys

import pytest
import torch

from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.kernels import devices

THERE, MISSING = "libc.so.6", "libno-such-driver.so.1"
CPU, CUDA, ROCM, XPU = (
    f"cuda = {cuda!r}\nhip = {hip!r}\nxpu = {xpu!r}\n"
    for cuda, hip, xpu in [(None, None, None), ("13.0", None, None), (None, "7.1", None), (None, None, "20250202")]
)


@pytest.fixture
def without_torch(monkeypatch):
    """Importing torch is an ImportError."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def built(monkeypatch, tmp_path, without_torch):
    """A torch that was built for something, on a machine with that driver."""

    def build(version, driver=MISSING, rocm=False):
        (tmp_path / "torch").mkdir()
        if version is not None:
            (tmp_path / "torch" / "version.py").write_text(version)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.setattr(devices, "CUDA_DRIVER", driver)
        monkeypatch.setattr(devices, "ROCM_DRIVER", tmp_path / ("torch" if rocm else "nothing"))

    return build


@pytest.mark.skipif(sys.platform != "linux", reason="drivers are looked for under Linux")
@pytest.mark.parametrize(("version", "where"), [(CPU, {}), (CPU, {"driver": THERE}), (CUDA, {}), (ROCM, {})])
def test_auto_is_the_cpu_without_asking_torch_where_torch_can_find_no_gpu(built, version, where):
    built(version, **where)
    assert devices.find_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("version", "where"),
    [(CUDA, {"driver": THERE}), (ROCM, {"rocm": True}), (XPU, {}), (None, {}), (None, {"driver": THERE})],
)
def test_torch_is_asked_where_there_may_be_a_gpu(built, version, where):
    built(version, **where)
    with pytest.raises(ImportError):
        devices.find_device("auto")


def test_a_cpu_needs_no_torch(without_torch):
    assert devices.find_device("cpu") == "cpu" and devices.free_bytes("cpu") > 0


@pytest.mark.parametrize("has_gpu", [False, True])
def test_auto_is_what_torch_says_once_it_is_imported(monkeypatch, has_gpu):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert devices.find_device("auto") == ("cuda" if has_gpu else "cpu")


def test_names_are_torchs(monkeypatch):
    assert devices.find_device("cpu:0") == str(torch.device("cpu:0")) and devices.kind_of("cpu:0") == "cpu"
    with pytest.raises(ConfigError, match="'meta' is not allowed: it holds no numbers"):
        devices.find_device("meta")
    with pytest.raises(ConfigError, match="'gpu' is not allowed: here there are auto, cpu"):
        devices.find_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(TokenmillError, match="this machine has no cuda device"):
            devices.find_device("cuda:3")


def test_what_onednn_does_not_multiply(monkeypatch):
    assert devices.why_no_onednn("float16") == "cannot multiply float16 on this processor"
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    assert devices.why_no_onednn("float32") == "needs a torch that was built with oneDNN"


def test_onednn_multiplies_what_its_processor_can(monkeypatch):
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: True)
    for supported in (False, True):
        monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda supported=supported: supported)
        assert devices.why_no_onednn("float32") is None
        refused = None if supported else "cannot multiply bfloat16 on this processor"
        assert devices.why_no_onednn("bfloat16") == refused
        assert devices.why_no_onednn("float16") == "cannot multiply float16 on this processor"


def test_the_memory_of_a_gpu_is_what_its_driver_and_torch_have_left(monkeypatch):
    """This is not run on a GPU: the driver's answer is (free, total), and torch keeps what engines have given back."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (700 + device.index, 9000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 5000)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 4900)
    assert devices.free_bytes("cuda:1") == 801


def test_the_generation_of_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, device.index))
    assert devices.compute_capability("cuda:6") == (8, 6)
    monkeypatch.setattr("torch.version.hip", "7.1")
    assert devices.compute_capability("cuda:6") is None


@pytest.mark.parametrize(
    ("gpus", "mps", "there"), [(0, False, "cpu"), (2, False, "cpu, cuda:0, cuda:1"), (0, True, "cpu, mps")]
)
def test_the_devices_that_are_there_are_listed(monkeypatch, gpus, mps, there):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)
    with pytest.raises(ConfigError) as error:
        devices.find_device("gpu")
    assert str(error.value).endswith(f"'gpu' is not allowed: here there are auto, {there}")


def test_a_device_must_hold_a_tensor(monkeypatch):
    """The name of a device alone is known to torch in any case."""
    asked = []
    monkeypatch.setattr(torch, "empty", lambda *size, device: asked.append((size, str(device))))
    assert devices.find_device("cuda:3") == "cuda:3"
    assert asked == [((0,), "cuda:3")]
