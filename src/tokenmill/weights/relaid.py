"""A checkpoint shown under the names and in the layout of another kind of file, which is written anew.

One kind of file may have in one tensor what another has in several, and in another order. So each tensor that is asked
for is made of rows of the parameter that it fills, and these are read from whatever tensors have them.
"""

from collections import defaultdict
from math import prod

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.description import describe
from tokenmill.model.families import Family, find_family, read_config
from tokenmill.model.parameters import parameter_shapes
from tokenmill.quant.stored import Stored
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.names import Target, expected_tensors, match_tensors, rows_of
from tokenmill.weights.plain import Checkpoint
from tokenmill.weights.transforms import TRANSFORMS, of_rows


def in_layout(checkpoint: Checkpoint, family: Family) -> Checkpoint:
    """Show the checkpoint with the names of tensors that a family has; as it is, where it has these names."""
    return checkpoint if checkpoint.family.names == family.names else RelaidCheckpoint(checkpoint, family)


def in_hugging_face_layout(checkpoint: Checkpoint) -> Checkpoint:
    """Show the checkpoint as a directory has it: of a model that sees, the text part alone."""
    return in_layout(checkpoint, find_family({"model_type": read_config(checkpoint.config).family}))


class RelaidCheckpoint(Checkpoint):
    """The tensors of `plain` as files of `family` have them. CheckpointError where they do not fit their config."""

    def __init__(self, plain: Checkpoint, family: Family) -> None:
        self.plain, self._family, self._model = plain, family, read_config(plain.config)
        self.path, self.config, self.num_bytes, self.rounded = plain.path, plain.config, plain.num_bytes, plain.rounded
        self._parameters = parameter_shapes(describe(self._model))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._targets: dict[str, Target] = {}
        for short, (target, shape) in expected_tensors(family, self._model).items():
            name = short if target.parameter.startswith("head.") else family.prefix + short  # the head lies outside
            self.shapes[name], self._targets[name] = shape, target
        self._sources: dict[str, list[tuple[str, Target, range]]] = defaultdict(list)
        for name, target in match_tensors(plain, self._model).items():
            self._sources[target.parameter].append((name, target, self._rows(target)))

    @property
    def family(self) -> Family:
        return self._family

    def dtype_of(self, name: str) -> str:
        return self.plain.dtype_of(self._overlapping(name)[0][0])

    def read(self, name: str, dtype: torch.dtype | None = None, rows: range | None = None) -> Tensor:
        target, wanted, found = self._targets[name], self._rows(self._targets[name]), self._overlapping(name)
        label, other, own = found[0]
        if own == wanted and other.transform == target.transform:
            return self.plain.read(label, dtype, rows)
        parts = [self._cut(self._in_rows(*source, dtype), source[2], wanted) for source in found]
        whole = TRANSFORMS[target.transform].to_file(torch.cat(parts), self._model).reshape(self.shapes[name])
        return whole if rows is None else whole[rows.start : rows.stop]

    def read_codes(self, name: str, rows: range | None = None) -> Stored | None:
        """See Checkpoint. None, too, where one matrix is stored as codes of several kinds."""
        target, wanted, parts = self._targets[name], self._rows(self._targets[name]), list[Stored]()
        for label, other, own in self._overlapping(name):
            stored, order = self.plain.read_codes(label), of_rows(other.transform)
            if stored is None:
                return None
            stored = stored.map(lambda part: order.to_decoder(part, self._model))  # noqa: B023
            parts.append(stored.map(lambda part: self._cut(part, own, wanted)))  # noqa: B023
        if len({_kind(part) for part in parts}) > 1:
            return None
        to_file = of_rows(target.transform).to_file
        whole = Stored.joined(parts).map(lambda part: to_file(part, self._model))
        return whole if rows is None else whole.rows(rows)

    def tokenizer(self) -> Tokenizer | None:
        return self.plain.tokenizer()

    def generation_defaults(self) -> Recommended:
        return self.plain.generation_defaults()

    def _rows(self, target: Target) -> range:
        return rows_of(target, self._parameters[target.parameter][0], self._model)

    def _overlapping(self, name: str) -> list[tuple[str, Target, range]]:
        """List the tensors that have rows of a parameter that a tensor of this name fills, in their order."""
        target = self._targets[name]
        wanted = self._rows(target)
        found = [
            source
            for source in self._sources[target.parameter]
            if max(source[2].start, wanted.start) < min(source[2].stop, wanted.stop)
        ]
        return sorted(found, key=lambda source: source[2].start)

    def _in_rows(self, label: str, target: Target, own: range, dtype: torch.dtype | None) -> Tensor:
        """Read a tensor as the rows of its parameter that it fills."""
        values = self.plain.read(label, dtype)
        if not values.is_floating_point():
            raise CheckpointError(f"{label} holds {values.dtype}: quantised exports of this kind cannot be converted")
        values = TRANSFORMS[target.transform].to_decoder(values, self._model)
        shape = (len(own), *self._parameters[target.parameter][1:])
        return values.reshape(shape) if values.numel() == prod(shape) else values

    @staticmethod
    def _cut(rows: Tensor, own: range, wanted: range) -> Tensor:
        return rows[max(wanted.start - own.start, 0) : wanted.stop - own.start]


def _kind(stored: Stored) -> tuple[int, bool, bool]:
    return stored.bits, stored.minimums is None, stored.halves is None
