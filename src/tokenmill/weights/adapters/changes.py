"""The changes that the modules of an adapter make, in the places, the orders of rows and the dtype of a model."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.weights.adapters.adapter import Change, EmbeddingChange
from tokenmill.weights.adapters.factors import Module
from tokenmill.weights.adapters.model_weights import ModelWeights
from tokenmill.weights.adapters.places import EMBEDDING, HEAD, Places, path_of
from tokenmill.weights.cast import cast
from tokenmill.weights.names import Target
from tokenmill.weights.transforms import TRANSFORMS, of_rows


@dataclass
class Builder:
    """Collects changes. where: names the adapter in messages. base: the model's own weights, of which DoRA and whole
    matrices need some. unexpected, misshapen: what CheckpointError lists at the end.
    """

    places: Places
    dtype: torch.dtype
    where: str
    base: ModelWeights
    changes: dict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    embedding: dict[str, Tensor | float | tuple[int, ...]] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    @property
    def model(self) -> ModelConfig:
        return self.places.model

    def add(self, module: Module, token_ids: tuple[int, ...] = ()) -> None:
        """Add what a module changes. token_ids: of the rows in `tokens`."""
        places, name = self.places, module.name
        target = places.matrix(name)
        if target is None and (heads := places.heads(name)) and module.tensors.keys() == {"a", "b"}:
            self._add_heads(module, heads)
        elif target is None and places.is_of_other_part(name):
            self.left_out.append(name)
        elif target is not None and places.is_norm(target) and module.has_only("weight", "bias"):
            self._add_norm(module)
        elif target is None or not places.is_matrix(target):
            self.unexpected.append(name)
        elif path_of(target) == EMBEDDING:
            self._add_embedding(module, token_ids)
        elif path_of(target) == HEAD and "tokens" in module.tensors:
            self._add_tokens_of_head(module, token_ids)
        else:
            self._add_matrix(module, target)

    def add_experts(self, outer: str, parameter: str, module: Module) -> None:
        """Add the factors of all experts' matrices in one tensor: A is [E · R, I] with rows (expert, rank), and B
        [O, R · E] with columns (rank, expert).
        """
        targets, a, b = self.places.each(f"{outer}.{parameter}"), module.get("a"), module.get("b")
        if not targets or a is None or b is None or not module.has_only("a", "b"):
            return self.unexpected.append(f"{module.name} ({', '.join(sorted(module.tensors))} of {parameter})")
        count = len(targets)
        fits = len(a) % count == 0 and a.dim() == 2
        if not fits or (b.shape[0], a.shape[1]) != (len(self.places.rows(targets[0])), self.places.inputs(targets[0])):
            return self._misfit(f"{module.name} ({parameter})", a, b, targets[0], f" for {count} experts")
        a_ERI, b_ORE = a.view(count, -1, a.shape[1]), b.view(len(b), -1, count)
        for expert, target in enumerate(targets):
            self._add_matrix(Module(module.name, module.scale, {"a": a_ERI[expert], "b": b_ORE[:, :, expert]}), target)
        return None

    def add_stack(self, module: Module) -> None:
        """Add the factors of all experts as llama.cpp has them: [E, R, I] and [E, O, R]."""
        targets, a, b = self.places.each(f"{module.name}.weight"), module.get("a"), module.get("b")
        if a is None or b is None or not targets or len(targets) != len(a) or len(a) != len(b):
            return self.unexpected.append(module.name)
        for target, a_RI, b_OR in zip(targets, a, b, strict=True):
            self._add_matrix(Module(module.name, module.scale, {"a": a_RI, "b": b_OR}), target)
        return None

    # ---- matrices

    def _add_matrix(self, module: Module, target: Target) -> None:
        a, b, rows = module.get("a"), module.get("b"), self.places.rows(target)
        if not module.has_only("a", "b", "b_bias", "magnitude", "weight", "bias"):
            return self.unexpected.append(f"{module.name} ({', '.join(sorted(module.tensors))})")
        whole, magnitude = self._whole(module, target), module.get("magnitude")
        if a is None or b is None:
            bias = self._new_bias(module, target)
            if whole is not None or bias is not None:
                self._put(path_of(target), Change(rows.start, len(rows), bias_O=bias, whole_OI=whole))
            return None
        if (len(b), a.shape[1]) != (len(rows), self.places.inputs(target)):
            return self._misfit(module.name, a, b, target)
        if whole is not None:
            return self.unexpected.append(f"{module.name}.base_layer (other values than the model's own)")
        a, b = self._ordered(module.name, a, b, target)
        factors = None
        if magnitude is not None:
            if magnitude.shape != (len(rows),):
                return self.misshapen.append(f"{module.name} {list(magnitude.shape)} where [{len(rows)}] goes")
            v_OI = self.base.multiplied(path_of(target), rows)[:, : a.shape[1]] + module.scale * (b @ a)
            factors = of_rows(target.transform).to_decoder(magnitude[:, None], self.model)[:, 0] / v_OI.norm(dim=1)
        change = Change(
            rows.start, len(rows), self._cast(a), self._cast(b), module.scale, factors, self._new_bias(module, target)
        )
        return self._put(path_of(target), change)

    def _ordered(self, name: str, a: Tensor, b: Tensor, target: Target) -> tuple[Tensor, Tensor]:
        """Bring the factors of a file's matrix into the decoder's orders of outputs and inputs."""
        layout = of_rows(target.transform)
        if layout.orders_rows:
            return a, layout.to_decoder(b, self.model)
        if not layout.orders_columns:
            raise CheckpointError(
                f"{self.where}: {name}: the layout of this matrix ({target.transform}) takes no factors"
            )
        return layout.to_decoder(a, self.model), b

    def _whole(self, module: Module, target: Target) -> Tensor | None:
        """Find a matrix that stands in the place of the base's, unless it is the same."""
        if (weight := module.get("weight")) is None:
            return None
        if weight.dim() != 2:
            self.misshapen.append(f"{module.name} {list(weight.shape)}, no matrix")
            return None
        weight, rows = TRANSFORMS[target.transform].to_decoder(weight, self.model), self.places.rows(target)
        shape = (len(rows), self.places.inputs(target))
        if tuple(weight.shape) != shape:
            self.misshapen.append(f"{module.name} {list(weight.shape)} where {list(shape)} goes")
            return None
        weight, own = self._cast(weight), self._cast(self.base.stored(path_of(target), rows)[:, : shape[1]])
        return None if torch.equal(weight, own) else weight

    def _new_bias(self, module: Module, target: Target) -> Tensor | None:
        """Compute what is added to the bias of the base: the scaled bias of b, or the difference of a new bias."""
        more, new, rows = module.get("b_bias"), module.get("bias"), self.places.rows(target)
        if more is None and new is None:
            return None
        found = torch.zeros(len(rows))
        for given in (each for each in (more, new) if each is not None):
            if given.shape != (len(rows),):
                self.misshapen.append(f"{module.name} (bias) {list(given.shape)} where [{len(rows)}] goes")
                return None
        layout = of_rows(target.transform)
        if more is not None:
            found += module.scale * layout.to_decoder(more[:, None], self.model)[:, 0]
        if new is not None:
            found += layout.to_decoder(new[:, None], self.model)[:, 0] - self.base.bias(path_of(target), rows)
        return found if bool(found.any()) else None

    def _add_heads(self, module: Module, heads: list[tuple[Target, Target]]) -> None:
        """Add the factors of the keys and values of all heads: in latent attention each head has a matrix of its own,
        which for keys is transposed.
        """
        a, b = module.tensors["a"], module.tensors["b"]
        sizes = [self.places.inputs(heads[0][0]), self.places.matrices[path_of(heads[0][1])].outputs]
        if (len(b), a.shape[1]) != (len(heads) * sum(sizes), self.places.inputs(heads[0][1])):
            return self._misfit(module.name, a, b, heads[0][1], f" for each of {len(heads)} heads")
        parts = torch.split(b, sizes * len(heads))
        for (key, value), key_b, value_b in zip(heads, parts[::2], parts[1::2], strict=True):
            transposed = Change(0, a.shape[1], self._cast(key_b.t()), self._cast(a.t()), module.scale)
            self._put(path_of(key), transposed)
            self._put(path_of(value), Change(0, len(value_b), self._cast(a), self._cast(value_b), module.scale))
        return None

    # ---- norms

    def _add_norm(self, module: Module) -> None:
        """Replace the weight and the bias of a norm. Several modules may fill one tensor of the decoder."""
        for kind, given in module.tensors.items():
            target = self.places.find(module.name, f".{kind}")
            if target is None:
                self.unexpected.append(f"{module.name} ({kind})")
                continue
            rows, shape = self.places.part_of_norm(target)
            if tuple(given.shape) != shape:
                self.misshapen.append(f"{module.name} ({kind}) {list(given.shape)} where {list(shape)} goes")
                continue
            values = self.norms.setdefault(target.parameter, self._cast(self.base.norm(target.parameter)))
            changed = TRANSFORMS[target.transform].to_decoder(given, self.model)
            values[rows.start : rows.stop].copy_(self._cast(changed))

    # ---- embedding and head

    def _add_embedding(self, module: Module, token_ids: tuple[int, ...]) -> None:
        vocabulary, hidden = self.model.vocab_size, self.model.hidden_size
        a, b, weight = module.get("embedding_a"), module.get("embedding_b"), module.get("weight")
        if left := module.tensors.keys() - {"embedding_a", "embedding_b", "weight", "tokens", "magnitude"}:
            return self.unexpected.append(f"{module.name} ({sorted(left)[0]})")
        if self.places.family.norms_in_embedding and not module.has_only("weight"):
            what = "the embedding of this family norms its rows, and a change would come after the norm"
            return self.unexpected.append(f"{module.name}: {what}")
        if weight is not None:
            if tuple(weight.shape) != (vocabulary, hidden):
                return self.misshapen.append(f"{module.name} {list(weight.shape)} where {[vocabulary, hidden]} goes")
            own = self.base.stored(EMBEDDING, range(vocabulary))
            if not torch.equal(self._cast(weight), self._cast(own)):
                self.embedding["table_VD"] = self._cast(weight)
        if a is not None and b is not None:
            if (a.shape[1], len(b)) != (vocabulary, hidden):
                wanted = f"[R, {vocabulary}] and [{hidden}, R] go"
                return self.misshapen.append(f"{module.name} {list(a.shape)} and {list(b.shape)} where {wanted}")
            if (magnitude := module.get("magnitude")) is not None:
                table = self.embedding.get("table_VD")
                own = table.float() if isinstance(table, Tensor) else self.base.multiplied(EMBEDDING, range(vocabulary))
                v_VD = own + module.scale * (b @ a).t()
                self.embedding["table_VD"] = self._cast(magnitude * v_VD / v_VD.norm(dim=0))
            else:
                self.embedding |= {"a_VR": self._cast(a.t()), "b_RD": self._cast(b.t()), "scale": module.scale}
        if (rows := module.get("tokens")) is not None:
            self._add_tokens(module.name, rows, token_ids)
        return None

    def _add_tokens(self, name: str, rows: Tensor, token_ids: tuple[int, ...]) -> None:
        """Replace rows of the embedding, and of a head that is tied to it."""
        if not self._fits_tokens(name, rows, token_ids):
            return
        self.embedding |= {"ids": token_ids, "rows_ND": self._cast(rows)}
        if self.model.tie_embeddings:
            self._replace_in_head(rows, token_ids)

    def _add_tokens_of_head(self, module: Module, token_ids: tuple[int, ...]) -> None:
        rows = module.tensors["tokens"]
        if module.tensors.keys() != {"tokens"}:
            self.unexpected.append(module.name)
        elif self._fits_tokens(module.name, rows, token_ids):
            self._replace_in_head(rows, token_ids)

    def _fits_tokens(self, name: str, rows: Tensor, token_ids: tuple[int, ...]) -> bool:
        wanted = (len(token_ids), self.model.hidden_size)
        if tuple(rows.shape) != wanted:
            self.misshapen.append(
                f"{name} {list(rows.shape)} where {list(wanted)} goes, as trainable_token_indices says"
            )
            return False
        if wrong := [each for each in token_ids if each >= self.model.vocab_size]:
            last = self.model.vocab_size - 1
            self.misshapen.append(f"{name}: token id {wrong[0]}, and the model's ids are 0 to {last}")
        return not wrong

    def _replace_in_head(self, rows: Tensor, token_ids: tuple[int, ...]) -> None:
        for place, token in enumerate(token_ids):
            self._put(HEAD, Change(token, 1, whole_OI=self._cast(rows[place : place + 1])))

    # ---- the end

    def _cast(self, tensor: Tensor) -> Tensor:
        return cast(self.where, tensor.float(), self.dtype).contiguous()

    def _put(self, path: str, change: Change) -> None:
        self.changes[path].append(change)

    def _misfit(self, name: str, a: Tensor, b: Tensor, target: Target, more: str = "") -> None:
        rows, inputs = len(self.places.rows(target)), self.places.inputs(target)
        self.misshapen.append(
            f"{name} {list(a.shape)} and {list(b.shape)} where [R, {inputs}] and [{rows}, R] go{more}"
        )

    def finish(self) -> tuple[dict[str, tuple[Change, ...]], EmbeddingChange | None, dict[str, Tensor]]:
        """Return all changes. CheckpointError lists every tensor that has no place, or does not fit its place."""
        if self.unexpected or self.misshapen:
            what = f"{self.where} does not fit this {self.model.family} model"
            raise CheckpointError(what, unexpected=self.unexpected, misshapen=self.misshapen)
        found = {path: tuple(sorted(each, key=lambda change: change.first)) for path, each in self.changes.items()}
        for path, each in found.items():
            for one, other in pairwise(each):
                if one.first + one.count > other.first:
                    raise CheckpointError(f"{self.where}: two modules change the same rows of {path}")
        embedding = EmbeddingChange(**self.embedding) if self.embedding else None  # type: ignore[arg-type]
        norms = {
            name: new for name, new in self.norms.items() if not torch.equal(new, self._cast(self.base.norm(name)))
        }
        return found, embedding, norms
