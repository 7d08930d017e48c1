"""A model with an adapter merged into its weights, written as a directory in Hugging Face layout."""

from pathlib import Path

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.hub.progress import Progress
from tokenmill.model.description import describe
from tokenmill.model.families import Family, read_config
from tokenmill.model.parameters import parameter_shapes
from tokenmill.quant.schemes import REFERENCE, find_scheme
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.adapters.adapter import Adapter, Change
from tokenmill.weights.adapters.model_weights import ModelWeights
from tokenmill.weights.adapters.places import EMBEDDING, HEAD
from tokenmill.weights.adapters.read import open_adapter
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import Target, match_tensors, rows_of
from tokenmill.weights.relaid import in_hugging_face_layout
from tokenmill.weights.transforms import TRANSFORMS
from tokenmill.weights.write.convert import check_new, convert


def merge(checkpoint: Checkpoint, adapter: Path, out_dir: Path, dtype: str, progress: Progress) -> Path:
    """Write the model with the adapter's changes in its weights; see convert. A tied model whose embedding or head is
    changed alone gets a head of its own. CheckpointError where the adapter does not fit, or adds a bias where the model
    has none.
    """
    check_new(out_dir)
    model = read_config(checkpoint.config)
    base = ModelWeights(checkpoint.path, model, find_scheme(REFERENCE))
    opened = open_adapter(adapter, adapter.name, model, torch.float32, base)
    return convert(MergedCheckpoint(in_hugging_face_layout(checkpoint), opened), out_dir, dtype, progress)


class MergedCheckpoint(Checkpoint):
    """The tensors of `plain`, in Hugging Face layout, as an adapter changes them."""

    def __init__(self, plain: Checkpoint, adapter: Adapter) -> None:
        self.plain, self.adapter, self._model = plain, adapter, read_config(plain.config)
        self.path, self.num_bytes, self.rounded = plain.path, plain.num_bytes, plain.rounded
        self.dequantized = plain.dequantized
        self._parameters = parameter_shapes(describe(self._model))
        self._targets = match_tensors(plain, self._model)
        self.shapes, self.config = dict(plain.shapes), dict(plain.config)
        self._head = ""
        if self._model.tie_embeddings and (adapter.embedding is not None or HEAD in adapter.changes):
            self._head = _name_of_head(plain.family)
            self.shapes[self._head] = self._parameters["embedding.weight"]
            self.config["tie_word_embeddings"] = False
        if lacking := [path for path, changes in adapter.changes.items() if self._lacks_bias(path, changes)]:
            what = f"adds a bias to {lacking[0]}, which has none in this {self._model.family} model"
            raise CheckpointError(f"{adapter.path} {what}: it cannot be merged, but loaded beside the model")

    def _lacks_bias(self, path: str, changes: tuple[Change, ...]) -> bool:
        return f"{path}.bias" not in self._parameters and any(each.bias_O is not None for each in changes)

    @property
    def family(self) -> Family:
        return self.plain.family

    def dtype_of(self, name: str) -> str:
        return self.plain.dtype_of(self._source(name))

    def _source(self, name: str) -> str:
        """Find the tensor whose values a new head begins with."""
        if name != self._head:
            return name
        return next(each for each, target in self._targets.items() if target.parameter == "embedding.weight")

    def read(self, name: str, dtype: torch.dtype | None = None, rows: range | None = None) -> Tensor:
        target = Target("head.weight", "", "") if name == self._head else self._targets.get(name)
        if target is None or not self._changes(target.parameter):
            return self.plain.read(self._source(name), dtype, rows)
        transform = TRANSFORMS[target.transform]
        values = transform.to_decoder(self.plain.read(self._source(name), torch.float32).float(), self._model).clone()
        path, _, kind = target.parameter.rpartition(".")
        shape = self._parameters.get(target.parameter, self._parameters["embedding.weight"])
        own = rows_of(target, shape[0], self._model)
        if target.parameter in self.adapter.norms:
            values.copy_(self.adapter.norms[target.parameter][own.start : own.stop])
        elif path == EMBEDDING:
            self._change_embedding(values)
        else:
            for change in self.adapter.changes[path]:
                _change(values, own, change, kind)
        found = transform.to_file(values, self._model).contiguous()
        found = found.to(getattr(torch, self.dtype_of(name)) if dtype is None else dtype)
        return found if rows is None else found[rows.start : rows.stop]

    def tokenizer(self) -> Tokenizer | None:
        return self.plain.tokenizer()

    def generation_defaults(self) -> Recommended:
        return self.plain.generation_defaults()

    def _changes(self, parameter: str) -> bool:
        path, _, kind = parameter.rpartition(".")
        if parameter in self.adapter.norms:
            return True
        if path == EMBEDDING:
            return self.adapter.embedding is not None
        changes = self.adapter.changes.get(path, ())
        return any(each.bias_O is not None for each in changes) if kind == "bias" else bool(changes)

    def _change_embedding(self, values_VD: Tensor) -> None:
        change = self.adapter.embedding
        assert change is not None, "it is changed"
        if change.table_VD is not None:
            values_VD.copy_(change.table_VD)
        if change.a_VR is not None and change.b_RD is not None:
            values_VD += change.scale * (change.a_VR @ change.b_RD)
        if change.rows_ND is not None:
            values_VD[list(change.ids)] = change.rows_ND


def _change(values: Tensor, own: range, change: Change, kind: str) -> None:
    """Apply a change to rows `own` of a matrix, or of its bias, in the decoder's order; in place."""
    first, last = max(own.start, change.first), min(own.stop, change.first + change.count)
    if first >= last:
        return
    mine, theirs = slice(first - own.start, last - own.start), slice(first - change.first, last - change.first)
    if kind == "bias":
        values[mine] += 0 if change.bias_O is None else change.bias_O[theirs]
        return
    if change.whole_OI is not None:
        values[mine] = change.whole_OI[theirs]
    if change.a_RI is not None and change.b_OR is not None:
        values[mine] += change.scale * (change.b_OR[theirs] @ change.a_RI)
    if change.factors_O is not None:
        values[mine] *= change.factors_O[theirs, None]


def _name_of_head(family: Family) -> str:
    return next((name for name, goal in family.names.items() if goal == "head.weight"), "lm_head.weight")
