"""Buffers that files have beside the weights: frequencies of the positions, the causal mask, constants.

Nothing is computed with them. But a file whose buffers differ from its config was made for other arithmetic, so their
values are compared.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.model.rope import frequencies
from tokenmill.weights.plain import Checkpoint

log = logging.getLogger(__name__)

_HIDDEN = -1e3  # a mask adds this or less to a score: -1e4, -1e9 or the smallest number of a type


def compare_buffers(checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Warn of buffers of these names that differ from the config; CheckpointError for another constant."""
    model, other = read_config(checkpoint.config), []
    for name in names:
        stored, kind = checkpoint.read(name), name.rpartition(".")[2]
        if kind in _CONSTANTS:
            _check_constant(checkpoint, name, stored, _CONSTANTS[kind])
        elif not _KINDS[kind](stored, model):
            other.append(name)
    if other:
        more = f" and {len(other) - 1} others" * (len(other) > 1)
        message = "%s: %s%s differ from config.json; they are not used, as in transformers"
        log.warning(message, checkpoint.path, other[0], more)


def _are_frequencies(stored: Tensor, model: ModelConfig) -> bool:
    """Compare with the frequencies of the config, with its scaling or without, as some versions stored them."""
    rope = model.rope
    if rope is None:
        return False
    plain = frequencies(replace(rope, kind="default", scaling=()))
    known = [plain] if rope.kind == "dynamic" else [plain, frequencies(rope)]
    # Numbers of 16 bits may have been computed in 16 bits: two roundings. The smallest in float16 have few digits.
    exact = torch.finfo(stored.dtype) if stored.is_floating_point() else torch.finfo(torch.float32)
    values = stored.float()
    return any(
        values.shape == each.shape and torch.allclose(values, each, rtol=8 * exact.eps, atol=exact.smallest_normal)
        for each in known
    )


def _is_triangle(stored: Tensor, model: ModelConfig) -> bool:
    """Tell whether each position sees itself and all before it."""
    size = stored.shape[-1] if stored.ndim else 0
    if not size or stored.numel() != size * size:
        return False
    seen = stored.reshape(size, size) != 0
    return torch.equal(seen, torch.ones_like(seen).tril())


def _hides(stored: Tensor, model: ModelConfig) -> bool:
    return stored.numel() == 1 and float(stored) <= _HIDDEN


def _counts(stored: Tensor, model: ModelConfig) -> bool:
    """Tell whether the numbers are 0, 1, 2 …"""
    return torch.equal(stored.flatten().long(), torch.arange(stored.numel()))


def _check_constant(checkpoint: Checkpoint, name: str, stored: Tensor, value: float) -> None:
    """Refuse a constant that differs from the one in the code. It may be stored in 16 bits, and float16 has few digits
    for the smallest numbers.
    """
    exact = torch.finfo(stored.dtype) if stored.is_floating_point() else torch.finfo(torch.float32)
    step = exact.smallest_normal * exact.eps  # between the smallest numbers of the type
    if stored.numel() != 1 or not abs(float(stored) - value) <= 0.01 * abs(value) + step:
        found = f"{float(stored):g}" if stored.numel() == 1 else f"of shape {list(stored.shape)}"
        raise CheckpointError(f"{checkpoint.path}: {name} is {found}, and only {value:g} is implemented")


_CONSTANTS = {"beta": 0.5, "eps": -1e-6}  # of xIELU, see model/layers.py
_KINDS: dict[str, Callable[[Tensor, ModelConfig], bool]] = {
    "inv_freq": _are_frequencies,
    "bias": _is_triangle,
    "masked_bias": _hides,
    "position_ids": _counts,
}
