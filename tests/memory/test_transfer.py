"""Values to a device and back, and how they are brought there where the device is a GPU (not run here)."""

import numpy as np
import torch

from tokenmill.memory.transfer import HostCopy, bits, expanded, to_device

CPU = torch.device("cpu")


def test_values_become_a_tensor():
    whole = to_device([3, 1, 2], CPU)
    assert whole.dtype == torch.int64 and whole.tolist() == [3, 1, 2]
    nested = to_device([[0.5], [1.5]], CPU, torch.float32)
    assert nested.dtype == torch.float32 and nested.tolist() == [[0.5], [1.5]]


def test_vectors_of_every_kind_are_read_as_lists():
    reading = HostCopy(torch.tensor([1, 2]), np.array([0.5, 1.5]), ["a", None])
    assert reading.lists() == [[1, 2], [0.5, 1.5], ["a", None]]
    assert reading.lists() == [[1, 2], [0.5, 1.5], ["a", None]]
    assert HostCopy().lists() == []


def test_a_gpu_is_reached_through_pinned_memory(monkeypatch):
    """This is not run on a GPU: the calls of torch are recorded, as its notes on pinned memory ask for them."""
    calls = []

    class Made:
        def to(self, device, non_blocking):
            calls.append(("to", device, non_blocking))
            return "there"

    def tensor(values, dtype, pin_memory):
        calls.append((values, dtype, pin_memory))
        return Made()

    monkeypatch.setattr(torch, "tensor", tensor)
    assert to_device([1], torch.device("cuda")) == "there"
    assert calls == [([1], torch.int64, True), ("to", torch.device("cuda"), True)]


def test_bits_of_words_are_the_same_on_the_host_and_on_a_device():
    words_RW = np.array([[1, -(2**31), 6], [-1, 0, 2**31 - 1]], dtype=np.int32)
    for size in (70, 96):
        found_RV = bits(words_RW, size, CPU)
        assert found_RV.dtype == torch.bool and found_RV.shape == (2, size)
        assert found_RV[0].nonzero()[:, 0].tolist() == [0, 63, 65, 66]
        assert torch.equal(expanded(torch.from_numpy(words_RW), size), found_RV)
