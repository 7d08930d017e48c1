"""A loaded model: its modules, its cache and the program that runs it. An engine has one; a draft model is another."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec, StateSpec
from tokenmill.loader.model_facts import ModelFacts
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.program.forward import Program
from tokenmill.program.runner import Runner
from tokenmill.program.spec import ProgramSpec
from tokenmill.settings.engine_config import ResolvedConfig
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.version import __version__
from tokenmill.weights.fingerprint import ModelFiles


@dataclass(eq=False)
class LoadedModel:
    """A model in memory, made by `load_model` from resolved settings. Fields from ModelFacts: see there."""

    resolved: ResolvedModel
    tokenizer: Tokenizer | None
    fingerprint: Mapping[str, str]
    files: ModelFiles
    generation_defaults: Recommended
    program: Program
    pool: Pool
    runner: Runner
    kernel_name: str

    def release(self) -> None:
        """Let go of weights and cache; the facts about them stay."""
        if "program" in vars(self):
            self.program.close()
        for name in ("program", "pool", "runner"):
            vars(self).pop(name, None)

    @property
    def facts(self) -> ModelFacts:
        """The facts in its files beside the weights."""
        return ModelFacts(self.tokenizer, self.fingerprint, self.files, self.generation_defaults)

    @property
    def config(self) -> ResolvedConfig:
        return self.resolved.config

    @property
    def model_config(self) -> ModelConfig:
        return self.resolved.model

    @property
    def program_name(self) -> str:
        return self.resolved.program_name

    @property
    def spec(self) -> type[ProgramSpec]:
        """Return the facts of the program."""
        return self.resolved.program

    @cached_property
    def num_torch_threads(self) -> int:
        """Count torch's threads in a step: as many as the settings say, or one beside a program that has threads of its
        own.

        Torch's threads spin for milliseconds after each operation, and would take the processors from the program's.
        """
        return 1 if self.spec.has_threads else self.config.threads

    @property
    def memory(self) -> dict[str, int]:
        scratch = self.program.num_scratch_bytes
        return {
            "weights_bytes": self.program.num_weight_bytes,
            "matrix_bytes": self.program.num_matrix_bytes,
            "cache_bytes": self.pool.num_bytes,
            **({"scratch_bytes": scratch} if scratch else {}),
        }

    @property
    def compatibility(self) -> dict[str, Any]:
        """Make the header of rows that this model computes; see cache/snapshot.py."""
        config, model, name = self.config, self.model_config, self.config.model
        return {
            "model": str(Path(name).resolve()) if Path(name).exists() else name,
            "fingerprint": dict(self.fingerprint),
            "shape": _shape(self.resolved.cache),
            "rope": _rope(model.rope, config.max_length),
            "cache_format": config.cache_format,
            "dtype": config.dtype,
            "scheme": config.scheme,
            "program": self.program_name,
            "build": self.program.build_id,
            "kernel": self.kernel_name,
            "fuse": config.fuse,
            "compile": [config.compile, config.compile_phases, config.compile_backend],
            "versions": {"tokenmill": __version__, "torch": str(torch.__version__)},
        }


def _rope(rope: Rope | None, max_length: int) -> str:
    """Describe how rows are rotated, for the header, with the part that depends on the longest text of the engine."""
    return "None" if rope is None else rope.text + " for long texts" * rope.is_long(max_length)


def _shape(cache: CacheSpec) -> dict[str, Any]:
    """Describe what all layers keep, for the header; a list where layers differ."""
    rows = cache.rows
    states = {number: kept for number, kept in enumerate(cache.layers) if isinstance(kept, StateSpec)}
    of_each = {"num_kv_heads": [each.num_kv_heads for each in rows], "head_dim": [each.head_dim for each in rows]}
    if any(len(set(each.widths)) > 1 for each in rows):
        of_each["value_dim"] = [each.widths[-1] for each in rows]
    same = {name: values[0] if len(set(values)) == 1 else values for name, values in of_each.items()}
    told = (
        {
            "states": [
                [number, [list(shape) for shape in state.shapes], list(state.dtypes)]
                for number, state in states.items()
            ]
        }
        if states
        else {}
    )
    return {"num_layers": len(cache.layers), **same, **told}
