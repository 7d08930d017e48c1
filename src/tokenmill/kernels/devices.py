"""Devices that torch can compute on here: their free memory, and the dtypes that oneDNN multiplies.

torch takes seconds to import. It is imported here in the functions that must ask it, so that a question which can be
answered without it, such as the memory of a model on a CPU, does not wait for it. A device is given by its name.
"""

import ctypes
import sys
from pathlib import Path
from runpy import run_path

from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.memory.available import available_bytes

CUDA_DRIVER, ROCM_DRIVER = "libcuda.so.1", Path("/dev/kfd")


def kind_of(device: str) -> str:
    """Return a device's name without a number: "cuda" for "cuda:1"."""
    return device.partition(":")[0]


def find_device(name: str) -> str:
    """Find a device that can hold a tensor; ConfigError with the devices of this machine that can."""
    if name == "cpu" or (name == "auto" and not _may_have_gpu()):
        return "cpu"
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    usable += ["mps"] if torch.backends.mps.is_available() else []
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ConfigError("device", name, f"it holds no numbers; here there are auto, {', '.join(usable)}")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises all three, by backend
        if (kind := kind_of(name)) in ("cuda", "mps", "xpu") and kind not in " ".join(usable):
            raise TokenmillError(f"this machine has no {kind} device; use cpu, or auto") from error
        raise ConfigError("device", name, f"here there are auto, {', '.join(usable)}") from error
    return str(device)


def free_bytes(device: str) -> int:
    """Ask for the memory that is free there: of the machine, or of a GPU, whose driver knows of all processes. What
    torch keeps of an engine that is gone, to give it to the next one of this process, is free, too.
    """
    if kind_of(device) != "cuda":
        return available_bytes()
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(torch.device(device))[0] + kept


def compute_capability(device: str) -> tuple[int, int] | None:
    """Ask for the generation of a GPU of NVIDIA's, such as (9, 0) for an H100; None for other GPUs."""
    import torch

    return None if torch.version.hip is not None else torch.cuda.get_device_capability(torch.device(device))


def why_no_onednn(dtype: str) -> str | None:
    """Say why torch's oneDNN multiplies no matrices of this dtype on this processor; None where it does."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "needs a torch that was built with oneDNN"
    if dtype == "float32" or (dtype == "bfloat16" and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return None
    return f"cannot multiply {dtype} on this processor"


def _may_have_gpu() -> bool:
    """Tell that torch can find no GPU, since it was built without or the driver is missing; otherwise torch must
    say.
    """
    if sys.modules.get("torch") is not None or sys.platform != "linux":
        return True
    built = _build_of_torch()
    if built.get("hip") is not None:
        return ROCM_DRIVER.exists()
    if built.get("cuda", "unknown") is None:
        return built.get("xpu") is not None
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return not built
    return True


def _build_of_torch() -> dict[str, object]:
    """Read the names in torch's version.py, which tell its backends, without torch. Empty if unknown."""
    files = (Path(entry, "torch", "version.py") for entry in sys.path)
    file = next((file for file in files if file.is_file()), None)
    return {} if file is None else run_path(str(file))
