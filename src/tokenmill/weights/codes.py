"""How directories pack the codes of a matrix X.weight: what `quantization_config` says, and tensors into Stored.

tokenmill: X.codes [R, K] uint8, or [R, K / 2] with the earlier of two 4-bit codes in the low half of a byte, which is
what a matrix with minimums has; X.scales and X.minimums [R, G] float16.
GPTQ: X.qweight [K / 8, R] int32, eight codes of one column from the low bits up (four of 8 bits); X.qzeros [G, R / 8],
one too small in checkpoint_format "gptq"; X.scales [G, R]; X.g_idx [K] (https://github.com/AutoGPTQ/AutoGPTQ).
AWQ "gemm": X.qweight [K, R / 8] int32 whose nibbles are columns 0 2 4 6 1 3 5 7, X.qzeros [G, R / 8] likewise,
X.scales [G, R] (https://github.com/casper-hansen/AutoAWQ).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.errors import CheckpointError
from tokenmill.model.config import quant_method
from tokenmill.quant.stored import GROUP, Stored

__all__ = ["GROUPS", "Layout", "pack", "part_shapes", "read_layout", "shape_of", "unpack"]

GROUPS = (32, 64, 128, 256)
Shape = tuple[int, ...]

# What each method's settings may be. The first is the default, unless that is None.
_ALLOWED: dict[str, dict[str, tuple[Any, ...]]] = {
    "tokenmill": {"bits": (None, 4, 8), "group_size": (None, *GROUPS), "version": (None, 1)},
    "gptq": {
        "bits": (None, 4, 8),
        "group_size": (None, *GROUPS, -1),
        "checkpoint_format": ("gptq", "gptq_v2"),
        "format": ("gptq", "gptq_v2"),  # transformers' newer word for it
        "pack_dtype": ("int32",),
        "is_marlin_format": (False,),
        "desc_act": (False, True),  # what counts is whether g_idx is in order
    },
    "awq": {
        "bits": (None, 4),
        "group_size": (None, *GROUPS, -1),
        "version": ("gemm",),
        "format": ("gemm",),
        "zero_point": (True,),
    },
}
# How the codes were chosen, and wishes of other programs: nothing of it says how they are stored.
_HARMLESS = frozenset(
    """act_group_aware backend batch_size block_name_to_quantize cache_block_outputs damp_auto_increment
    damp_percent dataset disable_exllama do_fuse exllama_config fuse_max_seq_len lm_head max_input_length meta
    model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block
    modules_in_block_to_quantize modules_to_fuse modules_to_not_convert mse pad_token_id quant_method static_groups sym
    tokenizer true_sequential use_cuda_fp16 use_exllama""".split()
)
_PARTS = {  # the codes first
    "tokenmill": ("codes", "scales", "minimums"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
}
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # where column 0, 1, … of eight lies


@dataclass(frozen=True)
class Layout:
    """bits: of GPTQ and AWQ; our own has both side by side. group: inputs that share a scale, 0 for all of a row.

    zero_offset: what is added to a stored zero.
    """

    method: str
    bits: int
    group: int
    zero_offset: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """What is put in the place of "weight", the codes first."""
        return _PARTS[self.method]

    def num_groups(self, num_inputs: int) -> int:
        """G"""
        return -(-num_inputs // self.group) if self.group else 1


def read_layout(config: Mapping[str, Any]) -> Layout:
    """What a config's quantization_config says; CheckpointError names what is not implemented."""
    method = quant_method(config)
    assert method is not None, "only called for quantised directories"
    settings = {key: value for key, value in config["quantization_config"].items() if value not in (None, {})}
    found: dict[str, Any] = {}
    for key, allowed in _ALLOWED[method].items():
        value = settings.pop(key, allowed[0])
        value = value.lower() if isinstance(value, str) else value
        choices = [choice for choice in allowed if choice is not None]
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            names = ", ".join(map(repr, choices))
            raise CheckpointError(
                f"quantization_config: {key} = {value!r} is not implemented for {method}: use {names}"
            )
        found[key] = value
    unknown = [f"{key} = {value!r}" for key, value in sorted(settings.items()) if key not in _HARMLESS]
    if unknown:
        raise CheckpointError(f"quantization_config of {method} has keys that tokenmill does not know: {unknown}")
    version = "gptq_v2" in (found.get("checkpoint_format"), found.get("format"))
    offset = int(method == "gptq" and not version)
    return Layout(method, found["bits"], max(found["group_size"], 0), offset)


def shape_of(layout: Layout, shapes: Mapping[str, Shape]) -> tuple[int, int]:
    """[R, K] of the matrix that these parts are."""
    first, last = shapes[layout.parts[0]]
    if layout.method == "awq":
        return last * 8, first
    if layout.method == "gptq":
        return last, first * (32 // layout.bits)
    return first, last * (2 if "minimums" in shapes else 1)


def part_shapes(layout: Layout, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
    """The shape that every part must have; `minimums` says whether codes of ours have them, and so 4 bits."""
    groups, fields = layout.num_groups(num_inputs), 32 // layout.bits
    if layout.method == "tokenmill":
        numbers = {"scales": (num_rows, groups)} | ({"minimums": (num_rows, groups)} if minimums else {})
        return {"codes": (num_rows, num_inputs // (2 if minimums else 1)), **numbers}
    codes = (num_inputs // fields, num_rows) if layout.method == "gptq" else (num_inputs, num_rows // fields)
    shapes = {"qweight": codes, "qzeros": (groups, num_rows // fields), "scales": (groups, num_rows)}
    return shapes | ({"g_idx": (num_inputs,)} if layout.method == "gptq" else {})


def pack(stored: Stored, num_inputs: int, group: int) -> dict[str, Tensor]:
    """Our own parts of rounded rows; `num_inputs` must be even for 4 bits. Loses nothing but the padding."""
    assert stored.codes is not None and stored.scales is not None
    codes, step = stored.codes[:, :num_inputs], group // GROUP
    parts = {"codes": codes if stored.bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4}
    parts["scales"] = stored.scales[:, ::step].half()
    if stored.minimums is not None:
        parts["minimums"] = stored.minimums[:, ::step].half()
    return parts


def unpack(layout: Layout, parts: Mapping[str, Tensor], name: str) -> Stored:
    """R rows of codes. 8 bits with a zero other than 128 come with minimums, which no scheme keeps."""
    for part, tensor in parts.items():
        integer = torch.uint8 if part == "codes" else torch.int32
        if not (tensor.is_floating_point() if part in ("scales", "minimums") else tensor.dtype == integer):
            raise CheckpointError(f"{name}.{part} holds {tensor.dtype}, which is not what {layout.method} stores")
    if layout.method == "tokenmill":
        return _unpack_ours(layout, parts)
    if layout.method == "awq":
        codes_KR, zeros_GR = (_fields(parts[part], 4)[..., _AWQ_ORDER].flatten(1) for part in ("qweight", "qzeros"))
        codes_RK = codes_KR.t()
    else:
        _expect_order(layout, parts, name)
        codes_RK = _fields(parts["qweight"], layout.bits).permute(1, 0, 2).flatten(1)
        zeros_GR = _fields(parts["qzeros"], layout.bits).flatten(1)
    zeros_RG = (zeros_GR.t() + layout.zero_offset) & (1 << layout.bits) - 1
    scales_RG = parts["scales"].float().t()
    plain = bool((zeros_RG == 1 << layout.bits - 1).all())
    return _stored(layout, layout.bits, codes_RK, scales_RG, None if plain else -zeros_RG.float() * scales_RG)


def _unpack_ours(layout: Layout, parts: Mapping[str, Tensor]) -> Stored:
    codes, minimums = parts["codes"], parts.get("minimums")
    if minimums is None:
        return _stored(layout, 8, codes, parts["scales"].float(), None)
    codes_RK = torch.stack((codes & 15, codes >> 4), -1).flatten(1)
    return _stored(layout, 4, codes_RK, parts["scales"].float(), minimums.float())


def _stored(layout: Layout, bits: int, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None) -> Stored:
    """Padded to whole groups of 32, scales repeated for each of them."""
    num_inputs = codes_RK.shape[1]
    num_groups = -(-num_inputs // GROUP)

    def spread(numbers_RG: Tensor) -> Tensor:
        repeats = layout.group // GROUP if layout.group else num_groups
        return numbers_RG.repeat_interleave(repeats, 1)[:, :num_groups].contiguous()

    codes_RK = F.pad(codes_RK, (0, num_groups * GROUP - num_inputs)).contiguous()
    return Stored(bits, None, codes_RK, spread(scales_RG), None if minimums_RG is None else spread(minimums_RG))


def _fields(words_AB: Tensor, bits: int) -> Tensor:
    """[A, B] int32 → [A, B, 32 / bits] uint8, from the low bits up."""
    bytes_ABC = words_AB.contiguous().view(torch.uint8).view(*words_AB.shape, 4)  # little-endian, as the file
    return bytes_ABC if bits == 8 else torch.stack((bytes_ABC & 15, bytes_ABC >> 4), -1).flatten(2)


def _expect_order(layout: Layout, parts: Mapping[str, Tensor], name: str) -> None:
    """Groups of neighbours: with desc_act, inputs of one group may lie anywhere in the row."""
    groups_K = parts.get("g_idx")
    if groups_K is None:
        return
    order_K = torch.arange(len(groups_K)) // (layout.group or len(groups_K))
    if not torch.equal(groups_K, order_K.to(groups_K.dtype)):
        raise CheckpointError(f"{name}.g_idx is not in order (desc_act): such GPTQ exports are not supported")
