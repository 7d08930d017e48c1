"""Compiles every kernel of kernels/triton for GPUs that need not be there, and prints what was made of them as JSON.

Run as a program, without TRITON_INTERPRET: Triton decides where a kernel is defined whether it interprets it.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tokenmill.kernels.triton import attention, products, states
from tokenmill.kernels.triton import latent as latent_kernels
from tokenmill.model.mixers.slices import state_shape
from tokenmill.program.graphs.latent import POSITIONS, heads_of
from tokenmill.program.graphs.latent import WARPS as LATENT_WARPS
from tokenmill.program.graphs.layers import positions_of, warps_of
from tokenmill.program.graphs.matrices import INPUTS, OUTPUTS, STAGES, WARPS, inputs_of
from tokenmill.program.graphs.spec import SPLIT
from tokenmill.program.graphs.states import CHANNELS, COLUMNS

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"sm_80": 99 << 10, "sm_90": 99 << 10, "gfx942": 64 << 10}
"""Bytes of shared memory that a program may have, by NVIDIA's and AMD's tables: of NVIDIA's GPUs for desktops (8.6 to
12.0), which have less than an A100 or H100.
"""

NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FLOATS = {
    "eps",
    "q_eps",
    "k_eps",
    "scale",
    "softcap",
    "multiplier",
    "up_multiplier",
    "added_multiplier",
    "alpha",
    "limit",
    "max_strength",
    "min_step",
    "max_step",
}


def product(dtype: str, **how: Any) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:
    """Describe a compilation of the product: its kernel, the types of its pointers, its constants, its options."""
    constants = {
        "NORM": False, "CENTRED": False, "NORM_BIAS": False, "UNIT_OFFSET": False, "TWO_PASSES": False,
        "GATED": False, "ACTIVATION": 0, "HAS_BIAS": False, "ADDS": False, "CHOSEN": 0, "BY_HEADS": False,
        "SEVERAL": False, "READS_PAIRS": False, "CLAMPED": False, "BITS": 0, "PAIRED": False, "E2M1": False,
        "FACTORED": False, "HAS_MINIMUMS": False, "T": dtype, "OUT": dtype, "OUTPUTS": OUTPUTS,
        "INPUTS": inputs_of(getattr(torch, NAMES[dtype])),
    } | how  # fmt: skip
    weights = "u8" if constants["BITS"] else dtype
    pointers = dict.fromkeys(("x", "norm_weight", "norm_bias", "bias"), dtype) | {
        "numbers": weights,
        "out": constants["OUT"],
        "chosen": "i64",
        "places": "i64",
    }
    pointers |= dict.fromkeys(("scales", "minimums"), "fp16" if constants["BITS"] else dtype)
    pointers |= {"minimums": "i8"} if constants["FACTORED"] else {}
    pointers |= dict.fromkeys(("scales", "minimums"), "u8") if constants["E2M1"] else {}
    return products.product, pointers, constants, {"num_warps": WARPS, "num_stages": STAGES}


def attention_of(dtype: str, heads: tuple[int, int, int], splits: int, **how: Any) -> list[Any]:
    """Describe compilations of attention and of its merge. heads: of queries, of keys, and their width."""
    num_heads, num_kv_heads, width = heads
    group, padded = num_heads // num_kv_heads, triton.next_power_of_2(width)
    shared = {
        "NUM_HEADS": num_heads, "NUM_KV_HEADS": num_kv_heads, "HEAD_DIM": width, "WINDOW": 0, "SINKS": False,
        "NUM_SPLITS": splits, "SPLIT": SPLIT, "HEADS": max(16, triton.next_power_of_2(group)),
        "WIDTH": padded, "T": dtype,
    }  # fmt: skip
    more = {
        "ROPE_DIM": width, "Q_NORM": 0, "K_NORM": 0, "OWN": how.get("Q_NORM") == 2, "CENTRED": False,
        "NORM_BIAS": False, "UNIT_OFFSET": False, "CAPPED": False, "BLOCK": 32,
        "POSITIONS": positions_of(padded, getattr(torch, NAMES[dtype])), "INT8": False,
    }  # fmt: skip
    warps = warps_of(shared["HEADS"], padded, getattr(torch, NAMES[dtype]))
    floats = dict.fromkeys(("max_scores", "exp_sums", "value_sums", "qkv"), "fp32")
    own = dict.fromkeys(("cos", "sin", "q_norm", "k_norm", "q_bias", "k_bias", "sinks", "out"), dtype)
    rows, scales = ("i8", "fp32") if how.get("INT8") else (dtype, dtype)
    own |= {"k_rows": rows, "v_rows": rows, "k_scales": scales, "v_scales": scales}
    integers = dict.fromkeys(("tables", "positions"), "i64")
    of_merge = {name: kind for name, kind in {**floats, **own, **integers}.items() if name in attention.merge.arg_names}
    changed = {key: how[key] for key in shared.keys() & how.keys()}
    return [
        (attention.attend, {**floats, **own, **integers}, shared | more | how, {"num_warps": warps}),
        (attention.merge, of_merge, shared | changed, {}),
    ]


def latent_of(dtype: str, heads: int, widths: tuple[int, int, int], splits: int, **how: Any) -> list[Any]:
    """Describe compilations of latent attention and of its merge. widths: latent, plain and rotated."""
    latent, plain, end = widths
    group = heads_of(heads)
    shared = {
        "NUM_SPLITS": splits, "SPLIT": SPLIT, "HEADS": max(16, triton.next_power_of_2(group)), "WINDOW": 0,
        "WIDTH": triton.next_power_of_2(latent), "T": dtype,
    }  # fmt: skip
    own = {
        "GROUP": group, "LATENT_DIM": latent, "PLAIN_DIM": plain, "END_DIM": end, "ROPE_DIM": end, "BLOCK": 32,
        "UNIT_OFFSET": False, "POSITIONS": POSITIONS, "END_WIDTH": triton.next_power_of_2(end), "INT8": False,
    }  # fmt: skip
    of_merge = {"NUM_HEADS": heads, "NUM_KV_HEADS": heads // group, "HEAD_DIM": latent, "SINKS": False}
    pointers = dict.fromkeys(("q_latent", "q", "row", "rows", "cos", "sin", "norm_weight", "out", "sinks"), dtype)
    pointers |= dict.fromkeys(("scales", "max_scores", "exp_sums", "value_sums"), "fp32")
    pointers |= dict.fromkeys(("tables", "positions"), "i64") | ({"rows": "i8"} if how.get("INT8") else {})
    return [
        (kernel, {name: kind for name, kind in pointers.items() if name in kernel.arg_names}, constants, options)
        for kernel, constants, options in (
            (latent_kernels.attend_latent, shared | own | how, {"num_warps": LATENT_WARPS}),
            (attention.merge, shared | of_merge, {}),
        )
    ]


def convolution(dtype: str, channels: int, taps: int, **how: Any) -> tuple[Any, ...]:
    """Describe a compilation of a convolution, of channels whose taps are of that type."""
    floats = dict.fromkeys(("x", "gates", "states"), "fp32")
    constants = {"GATED": False, "HAS_BIAS": False, "ACTIVATION": 1, "CHANNELS": channels, "TAPS": taps}
    pointers = floats | {"weight": dtype, "bias": dtype, "slots": "i64"}
    return states.convolve, pointers, constants | {"TILE": CHANNELS} | how, {}


def recurrence(
    dtype: str, heads: tuple[int, int], key_dim: int, value_dim: int, delta: bool, each: bool = False
) -> tuple[Any, ...]:
    """Describe a compilation of a recurrence. heads: of values and of keys. each: numbers of a key have decays."""
    names = ("row_query", "row_key", "row_value", "row_decay", "row_strength", "states")
    pointers = dict.fromkeys(names, "fp32") | dict.fromkeys(("a_log", "dt_bias", "skip"), dtype) | {"slots": "i64"}
    columns = state_shape(heads[0], key_dim, value_dim)[-1]
    constants = {
        "DELTA": delta, "EACH_DECAYS": each, "HEADS": heads[0], "KEY_HEADS": heads[1], "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim, "COLUMNS": columns, "KEYS": triton.next_power_of_2(key_dim),
        "TILE": min(COLUMNS, triton.next_power_of_2(columns)),
    }  # fmt: skip
    return states.recur, pointers, constants, {}


def gate(dtype: str, width: int, **how: Any) -> tuple[Any, ...]:
    """Describe a compilation of gates over groups of that width."""
    constants = {"WIDTH": width, "ACTIVATION": 1, "NORM": True, "NORM_FIRST": True, "T": dtype} | how
    inputs = min(triton.next_power_of_2(width), 4096)
    pointers = {"x": "fp32", "gates": "fp32", "weight": dtype, "out": dtype}
    return states.gate, pointers, constants | {"INPUTS": inputs}, {}


CASES: dict[str, Any] = {
    **{f"qkv {dtype}": product(dtype, NORM=True, OUT="fp32") for dtype in ("bf16", "fp32")},
    "qkv fp16": product("fp16", NORM=True, TWO_PASSES=True, OUT="fp32", HAS_BIAS=True),
    "gate and up": product("bf16", NORM=True, UNIT_OFFSET=True, GATED=True, ACTIVATION=3),
    "gate and up, fp32": product("fp32", NORM=True, GATED=True, ACTIVATION=1),
    "down": product("bf16", ADDS=True),
    "up behind LayerNorm": product(
        "bf16", NORM=True, CENTRED=True, NORM_BIAS=True, TWO_PASSES=True, ACTIVATION=2, HAS_BIAS=True
    ),
    "gate and up, 8 bits": product("bf16", NORM=True, GATED=True, ACTIVATION=1, BITS=8),
    "down, 4 bits": product("bf16", ADDS=True, BITS=4, PAIRED=True, HAS_MINIMUMS=True),
    "gate and up, 4 bits": product("fp16", NORM=True, TWO_PASSES=True, GATED=True, ACTIVATION=1, BITS=4, PAIRED=True),
    "experts": product("bf16", NORM=True, GATED=True, CHOSEN=8, ACTIVATION=1, BITS=8),
    "clamped experts": product(
        "bf16", NORM=True, GATED=True, CHOSEN=4, CLAMPED=True, HAS_BIAS=True, BITS=4, PAIRED=True, HAS_MINIMUMS=True
    ),
    "experts of gpt-oss": product(
        "bf16", NORM=True, GATED=True, CHOSEN=4, CLAMPED=True, HAS_BIAS=True, BITS=4, PAIRED=True, E2M1=True
    ),
    "down of gpt-oss": product(
        "bf16", CHOSEN=4, READS_PAIRS=True, HAS_BIAS=True, BITS=4, PAIRED=True, E2M1=True, OUT="fp32"
    ),
    "gate and up, MXFP4": product(
        "fp16", NORM=True, TWO_PASSES=True, GATED=True, ACTIVATION=1, BITS=4, PAIRED=True, E2M1=True
    ),
    "down, MXFP4, fp32": product("fp32", ADDS=True, BITS=4, PAIRED=True, E2M1=True),
    "experts in several ways": product("bf16", NORM=True, CHOSEN=8, SEVERAL=True, BITS=6, FACTORED=True),
    "down of experts": product("bf16", CHOSEN=8, READS_PAIRS=True, OUT="fp32"),
    "keys of heads": product("bf16", BY_HEADS=True),
    "keys of heads, 8 bits": product("bf16", BY_HEADS=True, BITS=8),
    "head, 6 bits": product("bf16", NORM=True, BITS=6, FACTORED=True, OUT="fp32"),
}
for at, (kernel, *rest) in enumerate(
    [
        *attention_of("bf16", (32, 8, 128), 8),
        *attention_of("fp16", (32, 8, 64), 1),
        *attention_of("bf16", (4, 1, 256), 4, Q_NORM=1, K_NORM=1, UNIT_OFFSET=True, WINDOW=512),
        *attention_of("bf16", (64, 8, 64), 32, SINKS=True, CAPPED=True),
        *attention_of("fp32", (9, 3, 64), 4),
        *attention_of("bf16", (48, 1, 128), 4),
        *attention_of("bf16", (32, 8, 128), 8, INT8=True),
        *attention_of("fp16", (16, 16, 64), 1, INT8=True, Q_NORM=2, K_NORM=2),
        *attention_of("bf16", (40, 8, 128), 4, Q_NORM=2, K_NORM=2),
        *attention_of("bf16", (32, 8, 64), 4, Q_NORM=1, K_NORM=1, OWN=True, CENTRED=True, NORM_BIAS=True),
        *latent_of("bf16", 128, (512, 128, 64), 8),
        *latent_of("fp16", 20, (512, 192, 64), 1, INT8=True),
        *latent_of("bf16", 40, (256, 64, 32), 4),
    ]
):
    CASES[f"{kernel.__name__} {at // 2}"] = (kernel, *rest)
CASES["sum of experts"] = (
    products.add_chosen, {"parts": "fp32", "weights": "fp32", "out": "bf16"},
    {"CHOSEN": 8, "OUTPUTS": INPUTS, "ADDS": True, "T": "bf16"}, {},
)  # fmt: skip
CASES["norm behind"] = (
    products.add_normed, dict.fromkeys(("x", "out", "weight", "bias"), "bf16"),
    {"CENTRED": False, "NORM_BIAS": False, "UNIT_OFFSET": True, "INPUTS": 4096, "T": "bf16"}, {},
)  # fmt: skip
CASES |= {
    "convolution of LFM2": convolution("bf16", 2048, 3, GATED=True, ACTIVATION=0),
    "convolution of a delta net": convolution("bf16", 8192, 4),
    "convolution of Mamba 2": convolution("fp16", 3328, 4, HAS_BIAS=True),
    "state of Qwen 3.5": recurrence("bf16", (32, 16), 128, 128, True),
    "state of keys of 96": recurrence("bf16", (30, 30), 96, 192, True),
    "state of keys of 256": recurrence("fp32", (32, 16), 256, 256, True),
    "state of Kimi Linear": recurrence("bf16", (32, 32), 128, 128, True, each=True),
    "state of Granite 4": recurrence("bf16", (48, 1), 128, 64, False),
    "state of heads of 80": recurrence("bf16", (128, 8), 128, 80, False),
    "gates of heads": gate("bf16", 128),
    "gates of a row": gate("bf16", 8192, NORM_FIRST=False),
    "gates without a norm": gate("fp16", 2048, NORM=False, ACTIVATION=0),
    "gates of attention": gate("bf16", 256, NORM=False, ACTIVATION=8),
}


def compiled(case: tuple[Any, ...], target: GPUTarget) -> dict[str, Any]:
    """Compile one case; return registers, spills, bytes of shared memory, and the widest loads of global memory."""
    kernel, pointers, constants, options = case
    own = constants | ({"INTERPRETED": False} if "INTERPRETED" in kernel.arg_names else {})
    constants = {name: getattr(triton.language, NAMES[value]) if value in NAMES else value
                 for name, value in own.items()}  # fmt: skip
    signature, aligned = {}, {}
    for number, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = f"*{pointers[name]}"
            aligned[number,] = [["tt.divisibility", 16]]
        elif name in _FLOATS:
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if name != "num_rows":
                aligned[number,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=target, options=options)
    return {"shared": made.metadata.shared, **(_of_amd if target.backend == "hip" else _of_nvidia)(made.asm)}


def _loads(widths: list[int]) -> dict[str, int]:
    """Count the bytes that a thread's loads bring, and those that come by 16 or more at a time."""
    return {"bytes": sum(widths), "wide": sum(width for width in widths if width >= 16)}


def _of_amd(made: Any) -> dict[str, Any]:
    text, words = made["amdgcn"], {"dwordx4": 16, "dwordx2": 8, "dword": 4, "ushort": 2, "ubyte": 1, "short": 2}
    spills = sum(int(count) for count in re.findall(r"vgpr_spill_count:\s+(\d+)", text))
    loads = re.findall(r"(?:global|buffer)_load_(dwordx4|dwordx2|dword|ushort|ubyte|short)", text)
    return {"spills": spills, **_loads([words[each] for each in loads])}


def _of_nvidia(made: Any) -> dict[str, Any]:
    """Ask the assembler's own tool for registers that did not fit, which lie in local memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spills = sum(int(count) for count in re.findall(r"(?:LOCAL|STACK):(\d+)", usage))
    ptx = made["ptx"]
    copies = [int(size, 16) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*?, (0x\w+)", ptx)]
    loads = re.findall(r"ld\.global[.:\w]*?(?:\.v(\d))?\.b(\d+)", ptx)
    return {"spills": spills, **_loads([*copies, *(int(count or 1) * int(bits) // 8 for count, bits in loads)])}


def main() -> None:
    targets = sys.argv[1:] or [*TARGETS]
    found = {name: {each: compiled(case, TARGETS[each]) for each in targets} for name, case in CASES.items()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
