"""Tiny matrices as other programs quantise and pack them, with the values that these programs read back.

    python benchmarks/quantized_vectors.py tests/weights/codes/of_others.json

It needs compressed-tensors, bitsandbytes, mlx (mlx[cpu]), auto-round, and autoawq, of which single files are imported.
tests/weights/codes/test_of_others.py reads the file: for each kind the config's settings, the tensors, the first row of
values, and the digest of all of them as float32.
"""

import base64
import hashlib
import importlib.util
import json
import sys
import types
import zlib
from pathlib import Path

import torch

NAME = "model.layers.0.mlp.up_proj"
KINDS = {}


def numbers(rows, columns):
    """Numbers such as weights are, and a few large ones."""
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns)) * 0.15
    values[1, 3] = 1.7
    return values


def packed(tensor):
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def add(kind, settings, parts, values, key="quantization_config"):
    tensors = {
        f"{NAME}.{part}": [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), packed(tensor)]
        for part, tensor in parts.items()
    }
    values = values.detach().float().contiguous() + 0.0  # without negative zeros
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    KINDS[kind] = {
        key: settings,
        "shape": list(values.shape),
        "tensors": tensors,
        "row": packed(values[0]),
        "digest": digest,
    }


# ---- compressed-tensors


def add_compressed(kind, form, how, dtype=torch.bfloat16, activations=None):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**how)
    inputs = None if activations is None else QuantizationArgs(**activations)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs, format=form)
    weight = numbers(8 if args.symmetric else 16, 64).to(dtype)  # its zeros are packed along the rows
    rows, columns = weight.shape
    shapes = {"channel": (rows, 1, columns), "tensor": (1, 1, rows * columns)}
    if args.strategy == "block":
        high, wide = args.block_structure
        grouped = weight.reshape(rows // high, high, columns // wide, wide).transpose(1, 2).flatten(2)
    else:
        grouped = weight.reshape(shapes.get(args.strategy) or (rows, -1, args.group_size))
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    if args.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    compressor = BaseCompressor.load_from_registry(form)
    parts = compressor.compress({"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, scheme)
    # In float32: the library computes in the dtype of the scales, which rounds the values again.
    wide = {name: part.float() if part.dtype == torch.bfloat16 else part for name, part in parts.items()}
    values = compressor.decompress(wide, scheme)["weight"]
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, format=form, quantization_status="compressed", ignore=["lm_head"]
    )
    add(f"compressed {kind}", json.loads(config.model_dump_json()), parts, values)


def compressed():
    group, channel = {"strategy": "group", "group_size": 32}, {"strategy": "channel"}
    floats = {"num_bits": 8, "type": "float"}
    for bits, extra in ((2, {}), (3, {}), (4, {}), (4, {"symmetric": False}), (5, {"symmetric": False}), (8, {})):
        zeros = " with zeros" if extra else ""
        add_compressed(f"{bits} bits{zeros}", "pack-quantized", {"num_bits": bits, **group, **extra})
    add_compressed("4 bits by rows", "pack-quantized", {"num_bits": 4, **channel, "symmetric": False})
    add_compressed("4 bits in groups of 16", "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 16})
    rounded = {"num_bits": 8, "strategy": "token", "dynamic": True}
    add_compressed("int8 by rows", "int-quantized", {"num_bits": 8, **channel}, activations=rounded)
    add_compressed("int8 with one scale", "int-quantized", {"num_bits": 8, "strategy": "tensor"})
    add_compressed("int8 with zeros", "int-quantized", {"num_bits": 8, **channel, "symmetric": False})
    add_compressed("int8 in float32", "int-quantized", {"num_bits": 8, **channel}, torch.float32)
    add_compressed("4 bits a byte each", "naive-quantized", {"num_bits": 4, **group})
    add_compressed("fp8 by rows", "float-quantized", {**floats, **channel})
    add_compressed("fp8 with one scale", "float-quantized", {**floats, "strategy": "tensor"})
    blocks = {"strategy": "block", "block_structure": [4, 32]}
    add_compressed("fp8 in blocks", "float-quantized", {**floats, **blocks})
    exponents = {"num_bits": 4, "type": "float", "scale_dtype": "torch.uint8"}
    add_compressed("MXFP4", "mxfp4-pack-quantized", {**exponents, **group})
    for bits, form in ((6, "mxfp6-pack-quantized"), (8, "mxfp8-quantized")):
        add_compressed(f"MXFP{bits}", form, {**exponents, "num_bits": bits, **group})


# ---- bitsandbytes


def bitsandbytes():
    from bitsandbytes import functional

    weight = numbers(8, 64)
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            codes, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
            parts = {"weight": codes, **{f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}}
            settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
            settings |= {"bnb_4bit_use_double_quant": nested, "llm_int8_threshold": 6.0}
            add(f"{kind}{' nested' * nested}", settings, parts, functional.dequantize_4bit(codes, state))
    codes, largest, _ = functional.int8_vectorwise_quant(weight.half())
    parts = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
    add("LLM.int8", settings, parts, functional.int8_vectorwise_dequant(codes, largest))


# ---- MLX


def mlx():
    import mlx.core as mx
    import numpy as np

    kinds = [(bits, 64, "affine") for bits in (1, 2, 3, 4, 5, 6, 8)] + [(4, 32, "affine"), (4, 32, "mxfp4")]
    for bits, group, mode, *largest in [*kinds, (8, 32, "mxfp8"), (4, 16, "nvfp4"), (4, 16, "nvfp4", True)]:
        weight = mx.array(numbers(8, 64).numpy())
        how = {"group_size": group, "bits": bits, "mode": mode}
        with_largest = {"global_scale": mx.abs(weight).max()} if largest else {}
        parts = mx.quantize(weight.astype(mx.float16), **how, **with_largest)
        wide = [part.astype(mx.float32) if part.dtype == mx.float16 else part for part in parts]
        values = mx.dequantize(*wide, **how, **with_largest, dtype=mx.float32)
        named = dict(zip(("weight", "scales", "biases"), parts, strict=False)) | with_largest
        named = {name: torch.from_numpy(np.array(part)) for name, part in named.items()}
        settings = {"group_size": group, "bits": bits} | ({} if mode == "affine" else {"mode": mode})
        kind = f"MLX {mode} {bits} by {group}{' of the largest' * bool(largest)}"
        add(kind, settings, named, torch.from_numpy(np.array(values)), "quantization")


# ---- GPTQ's layouts, as AutoRound packs them


def rounded(weight, bits, group, symmetric):
    groups, largest = weight.reshape(len(weight), -1, group), 2**bits - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        scale = (torch.maximum(-low, high) * 2 / largest).half().float()
        return scale, torch.full_like(scale, 2.0 ** (bits - 1))
    scale = ((high - low) / largest).half().float()
    return scale, (-low / scale).round().clamp(1, largest)


def gptq():
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    kinds = [(2, 32, False), (3, 32, False), (4, 32, False), (8, 32, False), (8, 32, True)]
    for bits, group, symmetric in [*kinds, (4, 16, False), (4, 64, True)]:
        scale, zero = rounded(numbers(32, 64), bits, group, symmetric)
        packers = [(True, qlinear_torch_zp)] + [(False, qlinear_torch)] * (bits in (3, 4) and group == 32)
        for less_one, module in packers:
            packer = module.QuantLinear(bits, group, 64, 32, False)
            packer.device, linear = "cpu", torch.nn.Linear(64, 32, bias=False)
            linear.weight.data = numbers(32, 64)
            packer.pack(linear, scale.clone(), zero.clone(), None)
            parts = {name: getattr(packer, name) for name in ("qweight", "qzeros", "scales")}
            values = packer.float()(torch.eye(64)).t()
            packing = "auto_round:auto_gptq" if less_one else "auto_round:gptqmodel"
            settings = {"quant_method": "auto-round", "bits": bits, "group_size": group, "sym": symmetric}
            settings |= {"packing_format": packing, "data_type": "int", "autoround_version": "0.16.1"}
            add(f"{packing} {bits} by {group}{' symmetric' * symmetric}", settings, parts, values)


# ---- AWQ


def awq():
    from importlib.metadata import distribution

    def stub(name, **entries):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(entries)

    def module(file):
        spec = importlib.util.spec_from_file_location(file, distribution("autoawq").locate_file(f"awq/{file}.py"))
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    # AutoAWQ's packages import parts of transformers that newer versions lack: empty modules stand in for them.
    for name in ("awq", "awq.utils"):
        stub(name)
    stub("awq.utils.module", try_import=lambda name: (None, ""))
    stub("awq.utils.utils", get_best_device=lambda: "cpu")
    sys.modules["awq.utils.packing_utils"] = module("utils/packing_utils")
    for version, rows, group in (
        ("gemm", 32, 32),
        ("gemv", 8, 32),
        ("gemv", 8, 64),
        ("gemv_fast", 8, 32),
        ("gemv_fast", 8, 64),
    ):
        layer = getattr(
            module(f"modules/linear/{version}"), f"WQLinear_{ {'gemv_fast': 'GEMVFast'}.get(version, version.upper()) }"
        )
        weight = numbers(rows, 64)
        scale, zero = rounded(weight, 4, group, False)
        codes = (weight.reshape(rows, -1, group) / scale[..., None] + zero[..., None]).round().clamp(0, 15)
        linear = torch.nn.Linear(64, rows, bias=False)
        linear.weight.data = ((codes - zero[..., None]) * scale[..., None]).flatten(1)
        given = (
            (scale.t(), zero.t()) if version == "gemm" else (scale.half() if version == "gemv_fast" else scale, zero)
        )
        made = layer.from_linear(linear, 4, group, False, *given)
        parts = {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}
        parts["scales"] = parts["scales"].half()
        values = linear.weight
        if version == "gemv_fast":  # this layout stores -scale · zero point, in float16
            minimums = -(scale.half() * zero).half().float()
            values = (codes * scale[..., None] + minimums[..., None]).flatten(1)
        settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": version}
        add(f"AWQ {version} by {group}", settings, parts, values)


if __name__ == "__main__":
    for make in (compressed, bitsandbytes, mlx, gptq, awq):
        make()
    Path(sys.argv[1]).write_text(json.dumps(KINDS, separators=(",", ":")) + "\n")
    print(len(KINDS), "kinds", Path(sys.argv[1]).stat().st_size, "bytes")
