"""Files with tensors: what is said of them without torch is what torch reads from them."""

import pytest
import torch
from safetensors.torch import save_file

from tokenmill.weights.tensor_file import dtype_bytes, open_tensor_file

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.complex64, torch.float8_e8m0fnu),
]


@pytest.fixture(params=["model.safetensors", "pytorch_model.bin"])
def file(request, tmp_path):
    """One tensor of each dtype, by the name of that."""
    tensors = {str(dtype).removeprefix("torch."): torch.ones(3, 5).to(dtype) for dtype in DTYPES}
    write = save_file if request.param.endswith("safetensors") else torch.save
    write(tensors, tmp_path / request.param)
    return open_tensor_file(tmp_path / request.param)


def test_names_shapes_and_dtypes_are_those_that_torch_reads(file):
    assert file.dtypes == {name: name for name in file.shapes} and len(file.shapes) == len(DTYPES)
    for name, shape in file.shapes.items():
        tensor = file.read(name)
        assert (tuple(tensor.shape), str(tensor.dtype)) == (shape, f"torch.{file.dtypes[name]}")
        assert tensor.element_size() == dtype_bytes(file.dtypes[name])


def test_the_bytes_are_those_of_the_tensor(file):
    for name in file.shapes:
        pieces = file.stored_bytes(name)
        assert pieces is None or b"".join(pieces) == file.read(name).view(torch.uint8).numpy().tobytes()


def test_a_large_tensor_comes_in_pieces(tmp_path):
    tensors = {"small": torch.ones(3), "large": torch.arange(3_000_000, dtype=torch.int32)}
    save_file(tensors, tmp_path / "x.safetensors")
    pieces = list(open_tensor_file(tmp_path / "x.safetensors").stored_bytes("large"))
    assert len(pieces) == 3 and b"".join(pieces) == tensors["large"].numpy().tobytes()
