"""Directories whose matrices are codes: our own, and exports of GPTQ and AWQ.

The tensors that together hold X.weight are shown as X.weight. It is read in floating point, or as the file's own codes,
which the loader keeps exactly. Every method has its own tensors, for R outputs, K inputs and G groups of inputs:

tokenmill: X.codes [R, K] uint8 of 8 bits; X.scales [R, G] float16. A matrix of 4 bits also has X.minimums [R, G], and
X.codes [R, K / 2] with the earlier of two codes in the low half of a byte.
GPTQ: X.qweight [K / 8, R] int32, eight codes of one column from the low bits up (four codes if they have 8 bits);
X.qzeros [G, R / 8], which are stored less one in checkpoint_format "gptq"; X.scales [G, R]; X.g_idx [K], the group of
each input (https://github.com/AutoGPTQ/AutoGPTQ).
AWQ "gemm": X.qweight [K, R / 8] int32, whose eight codes are those of columns 0 2 4 6 1 3 5 7; X.qzeros [G, R / 8]
likewise; X.scales [G, R] (https://github.com/casper-hansen/AutoAWQ).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import quant_method
from tokenmill.model.families import find_family, read_config
from tokenmill.quant.stored import GROUP, Stored, joined_nibbles, split_nibbles
from tokenmill.value_reader import ValueReader
from tokenmill.weights.names import expand
from tokenmill.weights.plain import Checkpoint

__all__ = ["GROUPS", "Layout", "QuantizedCheckpoint", "describe_codes", "pack", "part_shapes", "unpack"]

GROUPS = (32, 64, 128, 256)
Shape = tuple[int, ...]
_PARTS = {  # the codes first
    "tokenmill": ("codes", "scales", "minimums"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
}
# What each method's settings may be: the default, where ... means that there is none, then the others.
_ALLOWED: dict[str, dict[str, tuple[Any, ...]]] = {
    "tokenmill": {"bits": (..., 4, 8), "group_size": (..., *GROUPS), "version": (..., 1)},
    "gptq": {
        "bits": (..., 4, 8),
        "group_size": (..., *GROUPS, -1),
        "checkpoint_format": ("gptq", "gptq_v2"),
        "format": ("gptq", "gptq_v2"),  # transformers' newer word for it
        "pack_dtype": ("int32",),
        "is_marlin_format": (False,),
        "data_type": ("int",),  # AutoRound's, as is the next: activations that are not rounded
        "act_bits": (16, 32),
        "desc_act": (False, True),  # what counts is whether g_idx is in order
    },
    "awq": {
        "bits": (..., 4),
        "group_size": (..., *GROUPS, -1),
        "version": ("gemm",),
        "format": ("gemm",),
        "zero_point": (True,),
        "act_bits": (16, 32),
    },
}
# How the codes were chosen, and settings of other programs: none of them changes how the codes are stored.
_HARMLESS = frozenset(
    """act_data_type act_dynamic act_group_aware act_group_size act_sym adapter amp apply_clip autoround_version backend
    batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset disable_exllama
    do_fuse duo_scaling enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config
    export_compatible fail_safe failsafe fuse_max_seq_len gptaq gptaq_alpha gradient_accumulate_steps hessian
    inject_fused_attention inject_fused_mlp iters lm_head low_gpu_mem_usage lr max_calib_samples max_calib_seq_len
    max_input_length meta minmax_lr mock_quantization model_file_base_name model_name_or_path model_seqlen
    module_name_preceding_first_block modules_in_block_to_quantize modules_to_fuse modules_to_not_convert mse
    n_parallel_calib_samples nsamples offload_to_disk offload_to_disk_path pack_impl pad_token_id provider quant_method
    sampler scale_dtype seqlen static_groups sym to_quant_block_names tokenizer true_sequential use_cuda_fp16
    use_exllama use_triton v2 v2_alpha vram_strategy""".split()
)
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # where the codes of columns 0, 1, … lie among the eight of a word
_CODE_BITS = {4: 5.0, 8: 8.5}  # per number as the native program packs it, scales included


@dataclass(frozen=True)
class Layout:
    """How a directory stores its codes.

    bits: of GPTQ and AWQ; our own directories may hold matrices of 4 and of 8. group: inputs that share a scale, 0 for
    all of a row. zero_offset: what is added to a stored zero.
    """

    method: str
    bits: int
    group: int
    zero_offset: int = 0


class QuantizedCheckpoint(Checkpoint):
    """One such directory, over the checkpoint that reads its tensors."""

    def __init__(self, plain: Checkpoint) -> None:
        self._plain, self._layout = plain, _read_layout(plain.config)
        self.path, self.num_bytes = plain.path, plain.num_bytes
        self.config = {key: value for key, value in plain.config.items() if key != "quantization_config"}
        self._parts = _find_parts(self._layout, plain)
        used = {f"{base}.{part}" for base, parts in self._parts.items() for part in parts}
        left_out = used | set(_empty_biases(plain, self._parts))
        shapes = {name: shape for name, shape in plain.shapes.items() if name not in left_out}
        self.shapes = shapes | {f"{base}.weight": _shape_of(self._layout, parts) for base, parts in self._parts.items()}

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        stored = self._unpack(name)
        return self._plain.read(name) if stored is None else stored.values()[:, : self.shapes[name][1]].to(dtype)

    def read_codes(self, name: str) -> Stored | None:
        """8 bits are kept where their zero is 128 and their scales are half floats."""
        stored = self._unpack(name)
        if stored is None or stored.bits == 4:
            return stored
        assert stored.scales is not None
        exact = stored.minimums is None and torch.equal(stored.scales.half().float(), stored.scales)
        return stored if exact else None

    def _unpack(self, name: str) -> Stored | None:
        base = name.removesuffix(".weight")
        if base not in self._parts or base == name:
            return None
        return unpack(self._layout, {part: self._plain.read(f"{base}.{part}") for part in self._parts[base]}, base)


def describe_codes(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a quantised directory with the key "stored_as_codes", as a GGUF file's has it; any other as it is.

    What stays in float16 counts as bfloat16: no program multiplies codes in float16 on a CPU.
    """
    if quant_method(config) is None:
        return config
    dtypes = {key: "bfloat16" for key in ("dtype", "torch_dtype") if str(config.get(key)).endswith("float16")}
    return config | dtypes | {"stored_as_codes": _CODE_BITS[_read_layout(config).bits]}


def _read_layout(config: Mapping[str, Any]) -> Layout:
    """What a config's quantization_config says; CheckpointError names what is not implemented."""
    method = quant_method(config)
    assert method is not None, "only called for quantised directories"
    given = {key: value for key, value in config["quantization_config"].items() if value not in (None, {})}
    settings = {key: value.lower() if isinstance(value, str) else value for key, value in given.items()}
    reader = ValueReader(settings, f"quantization_config of {method}", CheckpointError)
    found = {key: reader.expect(key, *allowed) for key, allowed in _ALLOWED[method].items()}
    reader.refuse_unread(settings.keys() - _HARMLESS)
    less_one = method == "gptq" and "gptq_v2" not in (found["checkpoint_format"], found["format"])
    return Layout(method, found["bits"], max(found["group_size"], 0), int(less_one))


def _find_parts(layout: Layout, plain: Checkpoint) -> dict[str, dict[str, Shape]]:
    """X → the shapes of its parts; CheckpointError lists those that are missing or misshapen."""
    found, missing, misshapen = {}, [], []
    names = _PARTS[layout.method]
    for name, shape in plain.shapes.items():
        base, _, suffix = name.rpartition(".")
        if suffix != names[0]:
            continue
        parts = {part: plain.shapes[f"{base}.{part}"] for part in names if f"{base}.{part}" in plain.shapes}
        if len(shape) != 2:
            misshapen.append(f"{name} {list(shape)} where two dimensions go")
            continue
        wanted = part_shapes(layout, *_shape_of(layout, parts), "minimums" in parts)
        missing += [f"{base}.{part}" for part in wanted if part not in parts and part != "g_idx"]
        wrong = [part for part in parts if parts[part] != wanted[part]]
        misshapen += [f"{base}.{part} {list(parts[part])} where {list(wanted[part])} goes" for part in wrong]
        found[base] = parts
    if missing or misshapen:
        raise CheckpointError(f"{plain.path} does not fit its config", missing=missing, misshapen=misshapen)
    return found


def _empty_biases(plain: Checkpoint, parts: Mapping[str, Any]) -> Iterator[str]:
    """Biases of nothing but zeros that the model does not have: AutoGPTQ gave one to every matrix (its issue 555)."""
    model, family = read_config(plain.config), find_family(plain.config)
    has = {"attention.qkv": model.qkv_bias, "attention.out": model.o_bias}
    has |= {"mlp.up": model.mlp_bias, "mlp.down": model.mlp_bias}
    real = {f"layers.{i}.{path}.bias" for i in range(model.num_layers) for path, there in has.items() if there}
    wanted = expand(family, model, real)
    for base in parts:
        name = f"{base}.bias"
        if name in plain.shapes and name.removeprefix(family.prefix) not in wanted and not plain.read(name).any():
            yield name


def _shape_of(layout: Layout, shapes: Mapping[str, Shape]) -> tuple[int, int]:
    """[R, K] of the matrix that these parts are."""
    first, last = shapes[_PARTS[layout.method][0]]
    if layout.method == "awq":
        return last * 8, first
    if layout.method == "gptq":
        return last, first * (32 // layout.bits)
    return first, last * (2 if "minimums" in shapes else 1)


def part_shapes(layout: Layout, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
    """The shape that every part must have; `minimums` says whether codes of ours have them, and so 4 bits."""
    groups, fields = -(-num_inputs // layout.group) if layout.group else 1, 32 // layout.bits
    if layout.method == "tokenmill":
        numbers = {"scales": (num_rows, groups)} | ({"minimums": (num_rows, groups)} if minimums else {})
        return {"codes": (num_rows, num_inputs // (2 if minimums else 1)), **numbers}
    codes = (num_inputs // fields, num_rows) if layout.method == "gptq" else (num_inputs, num_rows // fields)
    shapes = {"qweight": codes, "qzeros": (groups, num_rows // fields), "scales": (groups, num_rows)}
    return shapes | ({"g_idx": (num_inputs,)} if layout.method == "gptq" else {})


def pack(layout: Layout, stored: Stored, num_inputs: int) -> dict[str, Tensor]:
    """The parts of rounded rows in our own layout or GPTQ's. Loses nothing but the padding.

    Of our own, `num_inputs` must be even for 4 bits. Of GPTQ, it must be a multiple of the group, the number of rows
    one of the codes in a word, and no zero may be below what is taken off a stored one.
    """
    stored = stored.unpacked()
    assert stored.codes is not None and stored.scales is not None
    codes_RK, step = stored.codes[:, :num_inputs], layout.group // GROUP
    scales_RG = stored.scales[:, ::step]
    minimums_RG = None if stored.minimums is None else stored.minimums[:, ::step]
    if layout.method == "gptq":
        return _pack_gptq(layout, codes_RK, scales_RG, minimums_RG)
    assert layout.method == "tokenmill", "exports of AWQ are only read"
    parts = {"codes": codes_RK if stored.bits == 8 else joined_nibbles(codes_RK)}
    parts["scales"] = scales_RG.half()
    return parts if minimums_RG is None else parts | {"minimums": minimums_RG.half()}


def _pack_gptq(layout: Layout, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None) -> dict[str, Tensor]:
    num_inputs, fields, middle = codes_RK.shape[1], 32 // layout.bits, 1 << layout.bits - 1
    zeros_RG = torch.full_like(scales_RG, middle)
    if minimums_RG is not None:
        zeros_RG = torch.where(scales_RG == 0, middle, torch.round(-minimums_RG / scales_RG))
        assert torch.equal(-zeros_RG * scales_RG, minimums_RG), "a minimum that is no zero times its scale"
    stored_GR = (zeros_RG - layout.zero_offset).t()
    assert stored_GR.min() >= 0 and stored_GR.max() < 2 * middle, "a zero that GPTQ cannot store"
    return {
        "qweight": _words(codes_RK.reshape(len(codes_RK), -1, fields).permute(1, 0, 2), layout.bits),
        "qzeros": _words(stored_GR.to(torch.uint8).reshape(len(stored_GR), -1, fields), layout.bits),
        "scales": scales_RG.t().half(),
        "g_idx": torch.arange(num_inputs, dtype=torch.int32) // layout.group,
    }


def unpack(layout: Layout, parts: Mapping[str, Tensor], name: str) -> Stored:
    """R rows of codes. 8 bits with a zero other than 128 come with minimums, which no scheme keeps."""
    for part, tensor in parts.items():
        integer = torch.uint8 if part == "codes" else torch.int32
        if not (tensor.is_floating_point() if part in ("scales", "minimums") else tensor.dtype == integer):
            raise CheckpointError(f"{name}.{part} holds {tensor.dtype}, which is not what {layout.method} stores")
    if layout.method == "tokenmill":
        codes, minimums = parts["codes"], parts.get("minimums")
        if minimums is None:
            return _stored(layout, 8, codes, parts["scales"].float())
        codes_RK = split_nibbles(codes)
        return _stored(layout, 4, codes_RK, parts["scales"].float(), minimums.float())
    if layout.method == "awq":
        codes_KR, zeros_GR = (_fields(parts[part], 4)[..., _AWQ_ORDER].flatten(1) for part in ("qweight", "qzeros"))
        codes_RK = codes_KR.t()
    else:
        if (groups_K := parts.get("g_idx")) is not None:
            # Groups of neighbours: with desc_act, inputs of one group may lie anywhere in the row.
            order_K = torch.arange(len(groups_K)) // (layout.group or len(groups_K))
            if not torch.equal(groups_K, order_K.to(groups_K.dtype)):
                raise CheckpointError(f"{name}.g_idx is not in order (desc_act): such GPTQ exports are not supported")
        codes_RK = _fields(parts["qweight"], layout.bits).permute(1, 0, 2).flatten(1)
        zeros_GR = _fields(parts["qzeros"], layout.bits).flatten(1)
    zeros_RG = (zeros_GR.t() + layout.zero_offset) & (1 << layout.bits) - 1
    scales_RG = parts["scales"].float().t()
    plain = bool((zeros_RG == 1 << layout.bits - 1).all())
    return _stored(layout, layout.bits, codes_RK, scales_RG, None if plain else -zeros_RG.float() * scales_RG)


def _stored(
    layout: Layout, bits: int, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None = None
) -> Stored:
    """See Stored.of_groups. In a layout a group of 0 is a whole row."""
    whole_row = -(-codes_RK.shape[1] // GROUP) * GROUP
    return Stored.of_groups(bits, codes_RK, layout.group or whole_row, scales_RG, minimums_RG)


def _fields(words_AB: Tensor, bits: int) -> Tensor:
    """[A, B] int32 → [A, B, 32 / bits] uint8, from the low bits up."""
    bytes_ABC = words_AB.contiguous().view(torch.uint8).view(*words_AB.shape, 4)  # little-endian, as the file
    return bytes_ABC if bits == 8 else split_nibbles(bytes_ABC)


def _words(fields_ABC: Tensor, bits: int) -> Tensor:
    """The inverse of _fields."""
    bytes_ABC = fields_ABC if bits == 8 else joined_nibbles(fields_ABC)
    return bytes_ABC.contiguous().view(torch.int32).squeeze(-1)
