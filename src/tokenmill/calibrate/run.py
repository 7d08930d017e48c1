"""Quantises a checkpoint by calibration, layer by layer; an interrupted run is resumed."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.calibrate.allocation import check_target_bits, choose_8_bits
from tokenmill.calibrate.layers import LayerWalk
from tokenmill.calibrate.partial import Partial
from tokenmill.calibrate.rounding import ALGORITHMS, Rounding
from tokenmill.calibrate.texts import Texts
from tokenmill.errors import ConfigError, RequestError, file_errors
from tokenmill.hub.progress import Progress
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import PER_LAYER, SHARED_ROWS, STREAMS, describe
from tokenmill.model.families import read_config
from tokenmill.quant.stored import Stored
from tokenmill.value_reader import check_choice
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.fingerprint import fingerprint
from tokenmill.weights.write.convert import check_space
from tokenmill.weights.write.export import Export, ExportPlan
from tokenmill.weights.write.quantize import Kind, plan_quantization, quantize

log = logging.getLogger(__name__)

GetTexts = Callable[[], Mapping[str, Texts]]
"""Makes the texts: "calibration", and any others that are to be kept with them."""


@dataclass(frozen=True)
class Calibrated:
    """The outcome of a calibration. kinds: see `quantize`. changes: see Rounding. texts: made now, or kept from
    before.
    """

    kinds: dict[str, Kind]
    changes: dict[str, tuple[float, float]]
    texts: Mapping[str, Texts]


def quantize_calibrated(
    checkpoint: Checkpoint,
    out: Path,
    progress: Progress,
    algorithm: str,
    get_texts: GetTexts,
    text_settings: Mapping[str, Any],
    target_bits: float | None = None,
    **settings: Any,
) -> Calibrated:
    """Quantise as `quantize` does, with its `settings`, but round matrices for their inputs on the texts.

    algorithm: "importance" or "gptq". text_settings: what decides the texts, as JSON; they are made once, and kept with
    the layers that are done in OUT.partial until everything is written. target_bits: so many bits per weight of the
    matrices with scales, so that some get 8 bits; see allocation.py.
    """
    check_choice("algorithm", algorithm, ALGORITHMS[1:])
    _check_layers(read_config(checkpoint.config), algorithm)
    plan, to = plan_quantization(checkpoint, out, **settings)
    if target_bits is not None:
        check_target_bits(plan, to, target_bits)
    _check_space(plan, to, out)
    described = {"algorithm": algorithm, "model": fingerprint(checkpoint.path), **text_settings, **settings}
    described |= {} if target_bits is None else {"target_bits": target_bits}
    partial = Partial(out, described, plan.group, to.grid(4, plan.symmetric) != "symmetric")
    with partial.locked():
        to.check_output(out)  # another process may have written it meanwhile
        try:
            texts = partial.texts(plan.model.vocab_size) or get_texts()
            _check_tokens(texts, plan.model.vocab_size)
            partial.keep_texts(texts)
            if target_bits is not None:
                settings["eight_bits"] = _eight_bits(plan, to, texts["calibration"], target_bits, partial, progress)
                plan = plan.with_8_bits(settings["eight_bits"])
            rounding = Rounding(algorithm, plan.group, to.grid(4, plan.symmetric))
            changes = _round_layers(plan, texts["calibration"], rounding, partial, progress)
            rounder = lambda name, rows_RK, _: partial.matrix(name, tuple(rows_RK.shape))  # noqa: E731
            kinds = quantize(checkpoint, out, progress, rounder=rounder, **settings)
        except KeyboardInterrupt:
            if (partial.path / "settings.json").exists():
                log.warning("%s keeps what is done: the same command goes on from there", partial.path)
            raise
        partial.remove()
    return Calibrated(kinds, changes, texts)


def _check_layers(model: ModelConfig, algorithm: str) -> None:
    """Refuse a model whose layers read more than the layer before: they are computed one by one."""
    for number, layer in enumerate(describe(model).layers):
        if more := [each for each in layer.rarities if each in (SHARED_ROWS, PER_LAYER, STREAMS)]:
            allowed = f"rtn for this model: the others compute layers one by one, and layer {number} has {more[0]}"
            raise ConfigError("algorithm", algorithm, allowed)


def _check_tokens(texts: Mapping[str, Texts], vocab_size: int) -> None:
    """Raise RequestError for tokens that a tokenizer has and the embedding has not."""
    for each in texts.values():
        if (largest := max(map(max, each.tokens))) >= vocab_size:
            raise RequestError(
                f"{each.origin}: token id {largest} is out of range: this model's ids are 0 to {vocab_size - 1}"
            )


def _eight_bits(
    plan: ExportPlan, to: Export, texts: Texts, target_bits: float, partial: Partial, progress: Progress
) -> list[str]:
    names = partial.eight_bits([name for name, bits in plan.bits.items() if bits == 4])
    if names is None:
        names = choose_8_bits(plan, to, texts, target_bits, progress)
        partial.keep_eight_bits(names)
    return names


def _check_space(plan: ExportPlan, to: Export, out: Path) -> None:
    """Check the disk: the kept layers take about as many bytes as the output, and both exist at the end."""
    needed = 2 * sum(to.num_bytes(plan, name) for name in plan.shapes)
    with file_errors(out, "written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        check_space(out, needed)


def _round_layers(
    plan: ExportPlan, texts: Texts, rounding: Rounding, partial: Partial, progress: Progress
) -> dict[str, tuple[float, float]]:
    """Round, or read, layer after layer, and return Rounding.changes of all."""
    walk = LayerWalk(plan.checkpoint, texts.tokens, set(plan.bits))
    total = sum(prod(plan.shapes[name]) for number in range(walk.num_layers) for name in walk.names(number))
    progress.stage(f"{rounding.algorithm}: {walk.num_layers} layers over {texts.num_tokens:,} tokens")
    done, changes = 0, dict[str, tuple[float, float]]()
    for number in range(walk.num_layers):
        found: dict[str, Stored] = {}

        def choose(name: str, numbers_RK: Tensor, inputs_TK: Tensor | None) -> Tensor:
            nonlocal done
            kept = partial.matrix(name, tuple(numbers_RK.shape))
            stored = kept or rounding.round(name, numbers_RK, inputs_TK, plan.bits[name])
            found[name] = stored  # noqa: B023  (called before the loop goes on)
            done += numbers_RK.numel()
            progress.advance(done, total)
            return stored.values()[:, : numbers_RK.shape[1]]

        if partial.has_layer(number):
            changes |= partial.read_layer(number, {name: plan.bits[name] for name in walk.names(number)})
            walk.through(number, choose)
        else:
            walk.through(number, choose)
            new = {name: rounding.changes[name] for name in found if name in rounding.changes}
            partial.keep_layer(number, found, new)
            changes |= new
    return changes
