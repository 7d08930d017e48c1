"""AutoRound's directories (https://github.com/intel/auto-round): packing_format says whether their tensors lie as those
of GPTQ or of AWQ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tokenmill.value_reader import ValueReader
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.layout import Choices, Layout, any_group, anything

_PACKERS = (
    "",
    "auto_gptq",
    "gptq",
    "gptqmodel",
    "auto_awq",
    "awq",
    "gemm",
    "exllamav2",
    "marlin",
    "tritonv2",
    "triton",
)


def _packing(reader: ValueReader, key: str) -> str:
    """The packer: of the words after "auto_round", those that change the layout."""
    value = reader.text(key)
    first, *words = value.split(":")
    if first not in ("auto_round", "auto-round") or not set(words) <= set(_PACKERS):
        raise reader.refuse(key, value, "auto_round:auto_gptq, auto_round:auto_awq or auto_round")
    return " ".join(words)


@dataclass(frozen=True)
class AutoRound(Layout):
    """Its settings; the layout is one of the others."""

    method = "auto-round"
    settings: ClassVar[Mapping[str, Choices]] = {
        "bits": (..., 2, 3, 4, 8),
        "group_size": any_group,
        "packing_format": _packing,
        "data_type": ("int",),
        "act_bits": (16, 32),
        "extra_config": anything,
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Layout:
        packing, bits, group = found["packing_format"], found["bits"], found["group_size"]
        if "awq" in packing:
            return AWQ(bits, group)
        # As export/export_to_autoround/export.py chooses what packs: zeros less one are AutoGPTQ's alone.
        less_one = "gptq" in packing and "gptqmodel" not in packing
        return GPTQ(bits, group, int(less_one), varies=bool(found["extra_config"]))
