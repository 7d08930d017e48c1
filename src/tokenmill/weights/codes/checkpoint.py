"""Quantised directories as checkpoints.

The tensors that together hold a matrix are shown as one tensor, in most layouts X.weight. It is read in floating point,
or as the file's own codes, which the loader keeps exactly.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import quant_method
from tokenmill.model.description import describe
from tokenmill.model.families import Family, read_config
from tokenmill.model.parameters import parameter_shapes
from tokenmill.registry import CODES, TENSOR_READERS, lookup
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.codes.layout import Layout, Parts, Shape
from tokenmill.weights.names import expand
from tokenmill.weights.plain import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokenmill.quant.stored import Stored

log = logging.getLogger(__name__)

FLOAT_BITS = 16.0
"""Bits of a number of a matrix that is not quantised, in such directories."""

# Keys of quantization_config that say nothing of how codes are stored: how they were chosen, and settings of other
# programs. Any other key must be known to its method.
_HARMLESS = frozenset(
    """act_data_type act_dynamic act_group_aware act_group_size act_sym adapter amp apply_clip autoround_version backend
    batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset dequantize
    disable_exllama do_fuse duo_scaling enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config
    export_compatible fail_safe failsafe fuse_max_seq_len gptaq gptaq_alpha gradient_accumulate_steps hessian
    inject_fused_attention inject_fused_mlp iters lm_head low_gpu_mem_usage lr max_calib_samples max_calib_seq_len
    max_input_length meta minmax_lr mock_quantization model_file_base_name model_free model_name_or_path model_seqlen
    module_name_preceding_first_block modules_in_block_to_quantize modules_to_fuse modules_to_not_convert mse
    n_parallel_calib_samples nsamples offload_to_disk offload_to_disk_path pack_impl pad_token_id provider quant_method
    regex_config sampler scale_dtype seqlen static_attention_granularity static_groups static_kv_granularity sym
    to_quant_block_names tokenizer true_sequential use_cuda_fp16 use_exllama use_triton v2 v2_alpha
    vram_strategy""".split()
)
# Requests to the computation that are not met, whatever the method: key → the remark on it.
_NOT_DONE = {
    "activation": "activations are not rounded",
    "attention_input_activations": "the inputs of attention are not rounded",
    "static_attention_dtype": "the inputs of attention are not rounded",
    "static_kv_dtype": "the cache is not rounded",
}
_KNOWN = _HARMLESS | _NOT_DONE.keys()


class QuantizedCheckpoint(Checkpoint):
    """A quantised directory, over the checkpoint that reads its tensors.

    parts: for each matrix that is stored as codes, by its name here, the shapes of its parts; layouts: its layout.
    transposed: the matrices that are shown as [inputs, outputs], as their family has them; codes never are.
    """

    def __init__(self, plain: Checkpoint) -> None:
        self.plain, usual = plain, _read_layout(plain.config)
        self.path, self.num_bytes = plain.path, plain.num_bytes
        self.config = {key: value for key, value in plain.config.items() if key != "quantization_config"}
        self.layouts, self.parts, passed = _find_parts(usual, plain)
        left_out = passed | set(_empty_biases(plain, self.parts))
        shapes = {name: shape for name, shape in plain.shapes.items() if name not in left_out}
        coded = {matrix: self.layouts[matrix].shape_of(parts) for matrix, parts in self.parts.items()}
        self.transposed = _find_transposed(plain) & coded.keys()
        turned = {matrix: coded[matrix][::-1] for matrix in self.transposed}
        self.shapes = shapes | coded | turned
        self.config.pop("stored_as_codes", None)
        bits = {matrix: self.layouts[matrix].code_bits for matrix in coded}
        if kept := {matrix: each for matrix, each in bits.items() if each}:
            family = plain.family
            short = next(name for name, target in family.names.items() if target == "embedding.weight")
            tables = family.prefix + short, short
            others = {name: FLOAT_BITS for name, shape in self.shapes.items() if len(shape) == 2 and name not in tables}
            compact = others | {matrix: self.layouts[matrix].compact_bits or FLOAT_BITS for matrix in coded}
            self.config = _with_codes(self.config, self._average(kept), self._average(compact))
            table = next((name for name in tables if name in self.parts), None)
            if table is not None and self.layouts[table].code_bits and self.layouts[table].bits <= 4:
                self.config["embedding_as_codes"] = self.layouts[table].code_bits
        self.dequantized, self._warned = self._describe_values(usual), set[str]()

    def _average(self, bits: Mapping[str, float]) -> float:
        """Compute the bits per number of these matrices."""
        sizes = {matrix: prod(self.shapes[matrix]) for matrix in bits}
        return sum(each * sizes[matrix] for matrix, each in bits.items()) / sum(sizes.values())

    @property
    def family(self) -> Family:
        return self.plain.family

    def dtype_of(self, name: str) -> str:
        return "float32" if name in self.parts else self.plain.dtype_of(name)

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        tensor: Tensor = lookup(TENSOR_READERS, "codes", "model").read(self, name, dtype, rows)
        return tensor

    def read_codes(self, name: str, rows: range | None = None) -> "Stored | None":
        """See Checkpoint. Codes of 8 bits are kept where their zero is 128, or can be, and their scales are half
        floats.
        """
        stored: Stored | None = lookup(TENSOR_READERS, "codes", "model").read_codes(self, name, rows)
        return stored

    def warn_of_values(self, name: str, why: str) -> None:
        """Warn once that codes are read as values, for a reason that only their numbers show."""
        if why not in self._warned:
            self._warned.add(why)
            log.warning("%s: codes of 8 bits with %s are read as values, %s among them", self.path, why, name)

    def _describe_values(self, usual: Layout) -> str:
        """Say which matrices are dequantized and which requests of the files are not met; empty if there is neither."""
        reasons = Counter(layout.as_values for layout in self.layouts.values() if layout.as_values)
        parts = [f"{count} of its {len(self.layouts)} matrices have {why}" for why, count in reasons.items()]
        hint = "; --scheme q8 rounds them to 8 bits"
        values = f"read as values, since no scheme holds such codes: {'; '.join(parts)}{hint}" if parts else ""
        settings = self.plain.config["quantization_config"]
        unmet = (f"{what} as its config asks ({key})" for key, what in _NOT_DONE.items() if settings.get(key))
        return "; ".join(filter(None, (values, usual.remark, *unmet)))


def describe_codes(config: dict[str, Any]) -> dict[str, Any]:
    """Add the key "stored_as_codes", which a GGUF file's config has, to the config of a directory whose codes are kept.
    Any other config is returned as it is.

    Tensors that stay in float16 count as bfloat16: no program multiplies codes in float16 on a CPU.
    """
    layout = None if quant_method(config) is None else _read_layout(config)
    if layout is None or not layout.code_bits:
        return config
    return _with_codes(config, layout.code_bits, layout.compact_bits)


def _with_codes(config: dict[str, Any], bits: float, compact: float) -> dict[str, Any]:
    dtypes = {key: "bfloat16" for key in ("dtype", "torch_dtype") if str(config.get(key)).endswith("float16")}
    return config | dtypes | {"stored_as_codes": bits, "stored_as_compact_codes": compact}


def _read_layout(config: Mapping[str, Any]) -> Layout:
    """Read a config's quantization_config; CheckpointError names settings that are not implemented."""
    method = quant_method(config)
    assert method is not None, "only called for quantised directories"
    given = {key: value for key, value in config["quantization_config"].items() if value not in (None, {})}
    settings = {key: value.lower() if isinstance(value, str) else value for key, value in given.items()}
    reader = ValueReader(settings, f"quantization_config of {method}", CheckpointError)
    layout: type[Layout] = lookup(CODES, method, "quant_method")
    found = {
        key: allowed(reader, key) if callable(allowed) else reader.expect(key, *allowed)
        for key, allowed in layout.settings.items()
    }
    reader.refuse_unread(settings.keys() - _KNOWN)
    return layout.read(found)


def _find_parts(usual: Layout, plain: Checkpoint) -> tuple[dict[str, Layout], dict[str, dict[str, Shape]], set[str]]:
    """Find each matrix's layout, and the shapes of its parts; and the tensors that are such parts, or no weights.
    CheckpointError lists missing and misshapen tensors.
    """
    layouts, found = dict[str, Layout](), dict[str, dict[str, Shape]]()
    beside = set(filter(usual.is_beside, plain.shapes))
    missing, misshapen = list[str](), list[str]()
    for name in plain.shapes:
        matrix = usual.matrix_of(name)
        if matrix is None:
            continue
        names = {part: usual.name_of(matrix, part) for part in usual.parts}
        parts = {part: plain.shapes[each] for part, each in names.items() if each in plain.shapes}
        dtypes = {part: plain.dtype_of(names[part]) for part in parts}
        flat = [part for part in usual.codes_of_any if part in parts and len(parts[part]) != usual.num_dimensions]
        if flat:
            goes = f"where {usual.num_dimensions} dimensions go"
            misshapen += [f"{names[part]} {list(parts[part])} {goes}" for part in flat]
            continue
        layout = usual.of(Parts(matrix, parts, dtypes, partial(_bytes_of_part, plain, names)))
        if not layout.has_codes:
            beside |= {names[part] for part in parts if part != layout.codes}
            continue
        if layout.codes not in parts:
            missing.append(names[layout.codes])
            continue
        wanted = layout.part_shapes(*layout.shape_of(parts), "minimums" in parts)
        missing += [names[part] for part in wanted if part not in parts and part not in layout.optional]
        wrong = [part for part in parts if part not in wanted or not layout.fits(part, parts[part], wanted[part])]
        for part in wrong:
            goes = f"{list(wanted[part])} goes" if part in wanted else "none goes"
            misshapen.append(f"{names[part]} {list(parts[part])} where {goes}")
        layouts[matrix], found[matrix] = layout, parts
    if missing or misshapen:
        raise CheckpointError(f"{plain.path} does not fit its config", missing=missing, misshapen=misshapen)
    used = {layouts[matrix].name_of(matrix, part) for matrix, parts in found.items() for part in parts}
    passed = used | beside
    left = [name for name in plain.shapes if name not in passed]
    if unscaled := [name for name in left if _needs_scales(name, plain.dtype_of(name))]:
        raise CheckpointError(f"{plain.path}: no scale is beside the codes of {brief(unscaled)}")
    return layouts, found, passed


def _find_transposed(plain: Checkpoint) -> set[str]:
    """Find the tensors that the model's family has as [inputs, outputs], as GPT-2's Conv1D: every method quantises and
    stores them as a Linear's [outputs, inputs].
    """
    family, model = plain.family, read_config(plain.config)
    if not any(" | transpose" in target for target in family.names.values()):
        return set()
    targets = expand(family, model, parameter_shapes(describe(model)))
    shorts = {name for name, target in targets.items() if target.is_transposed}
    return shorts | {family.prefix + name for name in shorts}


def _needs_scales(name: str, dtype: str) -> bool:
    """Tell whether a tensor of this name and dtype is no weight without scales beside it."""
    is_integer = not dtype.removeprefix("b").startswith("float")
    return dtype == "int8" or dtype.startswith("float8") or (is_integer and name.endswith(".weight"))


def _bytes_of_part(plain: Checkpoint, names: Mapping[str, str], part: str) -> bytes:
    pieces = plain.stored_bytes(names[part])
    return plain.read(names[part]).contiguous().numpy().tobytes() if pieces is None else b"".join(pieces)


def _empty_biases(plain: Checkpoint, parts: Mapping[str, Any]) -> Iterator[str]:
    """Find biases of zeros alone that the model does not have: AutoGPTQ gave one to every matrix (its issue 555)."""
    model, family = read_config(plain.config), plain.family
    wanted = expand(family, model, [name for name in parameter_shapes(describe(model)) if name.endswith(".bias")])
    for matrix in parts:
        name = f"{matrix.removesuffix('.weight')}.bias"
        if name in plain.shapes and name.removeprefix(family.prefix) not in wanted and plain.is_zero(name):
            yield name
