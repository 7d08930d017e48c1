"""Quantised directories as checkpoints, over tensors that are held in memory."""

from pathlib import Path

import pytest
import torch

from tokenmill.errors import CheckpointError
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint
from tokenmill.weights.codes.integer_tensors import pack_own
from tokenmill.weights.codes.own import Own
from tokenmill.weights.plain import Checkpoint

CONFIG = {"model_type": "llama", "vocab_size": 10, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2}
UP, DOWN, Q = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj"


class InMemory(Checkpoint):
    """A plain checkpoint of these tensors."""

    def __init__(self, method: str, bits: int, tensors: dict[str, torch.Tensor], **config: object) -> None:
        own = {"quant_method": method, "bits": bits, "group_size": 32} | (
            {"version": 1} if method == "tokenmill" else {}
        )
        self.path, self.num_bytes = Path("/models/x"), 1234
        self.config = CONFIG | config | {"quantization_config": own}
        self.tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def dtype_of(self, name):
        return str(self.tensors[name].dtype).removeprefix("torch.")

    def read(self, name, dtype=None, rows=None):
        return self.tensors[name] if rows is None else self.tensors[name][rows.start : rows.stop]


def numbers(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


def own(base: str, rows: int, columns: int, bits: int = 4) -> dict[str, torch.Tensor]:
    parts = pack_own(Own(bits, 32), round_to_nearest(numbers(rows, columns), bits, quick=True), columns)
    return {f"{base}.{part}": tensor for part, tensor in parts.items()}


def gptq(base: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    """Zeros alone."""
    shapes = {"qweight": (columns // 8, rows), "qzeros": (columns // 32, rows // 8)}
    parts = {part: torch.zeros(shape, dtype=torch.int32) for part, shape in shapes.items()}
    parts |= {"scales": torch.ones(columns // 32, rows).half(), "g_idx": torch.arange(columns).int() // 32}
    return {f"{base}.{part}": tensor for part, tensor in parts.items()}


def test_matrices_are_shown_under_their_own_names():
    tensors = own(UP, 96, 64) | own(DOWN, 64, 96, bits=8) | {"model.norm.weight": torch.ones(64).half()}
    found = QuantizedCheckpoint(InMemory("tokenmill", 4, tensors))
    assert dict(found.shapes) == {"model.norm.weight": (64,), f"{UP}.weight": (96, 64), f"{DOWN}.weight": (64, 96)}
    assert (found.path, found.num_bytes) == (Path("/models/x"), 1234) and "quantization_config" not in found.config
    assert [name in found.parts for name in (f"{UP}.weight", "model.norm.weight", f"{UP}.bias", UP)] == [
        *(True, False, False, False)
    ]
    assert found.dtype_of(f"{UP}.weight") == "float32" and found.dtype_of("model.norm.weight") == "float16"


def test_values_and_codes_are_those_that_were_rounded():
    tensors = own(UP, 96, 40) | own(DOWN, 64, 96, bits=8) | {"model.norm.weight": torch.ones(64).half()}
    found = QuantizedCheckpoint(InMemory("tokenmill", 4, tensors))
    wanted = round_to_nearest(numbers(96, 40), 4, quick=True)
    assert torch.equal(found.read(f"{UP}.weight"), wanted.values()[:, :40]), "without the padding"
    assert found.read(f"{UP}.weight", torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(found.read_codes(f"{UP}.weight").minimums, wanted.minimums)
    eight = found.read_codes(f"{DOWN}.weight")
    assert eight.bits == 8 and torch.equal(eight.values(), found.read(f"{DOWN}.weight"))
    assert found.read_codes("model.norm.weight") is None
    assert found.read("model.norm.weight", torch.float32).dtype == torch.float16, "as the file has it"


def test_eight_bits_whose_scales_are_no_half_floats_are_not_kept():
    tensors = own(DOWN, 64, 96, bits=8)
    tensors[f"{DOWN}.scales"] = tensors[f"{DOWN}.scales"].float() * 1.0001
    found = QuantizedCheckpoint(InMemory("tokenmill", 8, tensors))
    assert found.read_codes(f"{DOWN}.weight") is None
    assert found.read(f"{DOWN}.weight").shape == (64, 96)


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        (
            "codes",
            torch.zeros(96, 32, dtype=torch.int32),
            "codes holds torch.int32, which is not what tokenmill stores",
        ),
        ("codes", torch.zeros(96, 32), "codes holds torch.float32, which is not what tokenmill stores"),
        (
            "scales",
            torch.zeros(96, 2, dtype=torch.uint8),
            "scales holds torch.uint8, which is not what tokenmill stores",
        ),
        ("minimums", torch.zeros(96, 2, dtype=torch.int32), "minimums holds torch.int32, which is not what tokenmill"),
    ],
)
def test_parts_of_another_type_are_refused_when_they_are_read(part, tensor, message):
    found = QuantizedCheckpoint(InMemory("tokenmill", 4, own(UP, 96, 64) | {f"{UP}.{part}": tensor}))
    with pytest.raises(CheckpointError, match=rf"^{UP}.{message}"):
        found.read(f"{UP}.weight")


def test_words_of_gptq_are_whole_numbers():
    tensors = gptq(UP, 96, 64)
    found = QuantizedCheckpoint(InMemory("gptq", 4, tensors))
    assert found.read(f"{UP}.weight").unique().tolist() == [-1.0]
    for part, dtype in (("qzeros", torch.uint8), ("qweight", torch.float16)):
        before, tensors[f"{UP}.{part}"] = tensors[f"{UP}.{part}"], tensors[f"{UP}.{part}"].to(dtype)
        with pytest.raises(CheckpointError, match=rf"up_proj.{part} holds {dtype}, which is not what gptq stores"):
            found.read(f"{UP}.weight")
        tensors[f"{UP}.{part}"] = before


def test_every_missing_and_misshapen_part_is_named():
    tensors = gptq(UP, 96, 64) | gptq(DOWN, 64, 96)
    del tensors[f"{UP}.qzeros"], tensors[f"{DOWN}.g_idx"]
    tensors[f"{DOWN}.scales"] = torch.ones(2, 64).half()
    tensors[f"{Q}.qweight"] = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(CheckpointError) as raised:
        QuantizedCheckpoint(InMemory("gptq", 4, tensors))
    error = raised.value
    assert error.missing == [f"{UP}.qzeros"] and error.unexpected == []
    assert error.misshapen == [
        f"{DOWN}.scales [2, 64] where [3, 64] goes",
        f"{Q}.qweight [3] where 2 dimensions go",
    ]
    assert str(error).startswith("/models/x does not fit its config; 1 missing: ")


def test_only_the_one_or_the_other_may_be_wrong():
    tensors = gptq(UP, 96, 64)
    for name, tensor in ((f"{UP}.scales", torch.ones(9, 96).half()), (f"{UP}.scales", None)):
        changed = {key: each for key, each in (tensors | {name: tensor}).items() if each is not None}
        with pytest.raises(CheckpointError, match="misshapen" if tensor is not None else "missing"):
            QuantizedCheckpoint(InMemory("gptq", 4, changed))
    del tensors[f"{UP}.g_idx"]
    assert dict(QuantizedCheckpoint(InMemory("gptq", 4, tensors)).shapes) == {f"{UP}.weight": (96, 64)}


def biases(**config: object) -> set[str]:
    """The biases that are left of those of Q, O, up and down, and of one that holds a number."""
    out = "model.layers.0.self_attn.o_proj"
    tensors = gptq(UP, 96, 64) | gptq(DOWN, 64, 96) | gptq(Q, 64, 64) | gptq(out, 64, 64)
    tensors |= {f"{base}.bias": torch.zeros(8) for base in (UP, Q, out)} | {f"{DOWN}.bias": torch.ones(8)}
    tensors["model.elsewhere.bias"] = torch.zeros(8)
    found = QuantizedCheckpoint(InMemory("gptq", 4, tensors, **config))
    return {name.split(".")[-2] for name in found.shapes if name.endswith(".bias")}


def test_empty_biases_that_the_model_does_not_have_are_left_out():
    assert biases() == {"down_proj", "elsewhere"}
    assert biases(attention_bias=True) == {"q_proj", "o_proj", "down_proj", "elsewhere"}
    assert biases(mlp_bias=True) == {"up_proj", "down_proj", "elsewhere"}
    assert biases(model_type="qwen2") == {"q_proj", "down_proj", "elsewhere"}
