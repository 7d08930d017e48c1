"""Adapters in the PyTorch modules: hooks on the modules that some adapter changes, which add to the rows of a step that
are computed with it. Other rows, and modules that no adapter changes, are left as they are.

The product of an adapter is summed in float32, and added before the result is rounded to the model's dtype, as in PEFT.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tokenmill.cache.step import Step
from tokenmill.model.decoder import Decoder
from tokenmill.model.experts import MoE
from tokenmill.program.compiled.micro_batches import MicroBatched
from tokenmill.program.divided import OWN_ROWS, undivided
from tokenmill.program.eager import Eager
from tokenmill.quant.matrix import Matrix, product
from tokenmill.weights.adapters.adapter import Adapter, Change, EmbeddingChange

Rows = Tensor | slice
"""The rows of a module's input that are computed with one adapter."""


class PreparedChange(NamedTuple):
    """A change with its tensors on the device. columns: of the module's outputs, which are changed. chosen: the rows of
    the change that these are, of which a rank may have a part. The products of all rows are computed in every rank,
    so that they have the bits of one process.
    """

    change: Change
    tensors: Mapping[str, Tensor]
    columns: Rows
    chosen: Rows


class AdaptedModules:
    """The hooks of one decoder. The modules of a step are computed by one thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._hooked = decoder, set[str]()
        self._of_tokens: list[tuple[Adapter, Rows]] = []
        self._of_logits: list[tuple[Adapter, Rows]] = []
        self._owners_T: Tensor | None = None
        self._is_inside = False  # a norm is computed again, with an adapter's tensors
        decoder.register_forward_pre_hook(self._begin)

    def add(self, adapter: Adapter) -> None:
        """Hook the modules that an adapter changes, where no earlier adapter did."""
        norms = _norms_of(adapter)
        hooks = {path: self._on_matrix(path) for path in adapter.changes} | {
            path: self._on_norm(path) for path in norms
        }
        if adapter.embedding is not None:
            hooks["embedding"] = self._on_embedding
        for path in hooks.keys() - self._hooked:
            self._hooked.add(path)
            self._module(path).register_forward_hook(hooks[path], prepend=True)
        device, held = self._decoder.embedding.weight.device, adapter.prepared.setdefault("eager", {})
        for path, changes in adapter.changes.items():
            own_rows = getattr(self._module(path), OWN_ROWS, None)
            held.update({change: _prepared(change, own_rows, device) for change in changes})
        for path, own in norms.items():
            own_rows = getattr(self._module(path), OWN_ROWS, None)
            held[path] = {kind: _of_rank(tensor, own_rows).to(device) for kind, tensor in own.items()}
        if adapter.embedding is not None:
            held[adapter.embedding] = _of_embedding(adapter.embedding, device)

    def _module(self, path: str) -> nn.Module:
        decoder = self._decoder
        if path == "head" and decoder.head is None:  # tied: a module of its own, of the same numbers
            with torch.device("meta"):
                head = Matrix(decoder.config.hidden_size, decoder.config.vocab_size, bias=False)
            head.weight = decoder.embedding.weight
            decoder.head = head  # with its weight: a step may run in another thread
        return undivided(decoder.get_submodule(path))

    def _begin(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Note which rows of the step are computed with which adapter."""
        step: Step = inputs[0]
        self._of_tokens, self._of_logits, self._owners_T = [], [], None
        used = dict.fromkeys(span.adapter for span in step.spans if span.adapter is not None)
        if not used:
            return
        tokens: dict[Adapter, list[int]] = {adapter: [] for adapter in used}
        logits: dict[Adapter, list[int]] = {adapter: [] for adapter in used}
        owners, first_logit, numbers = [], 0, {adapter: number for number, adapter in enumerate(used)}
        for span in step.spans:
            owners += [numbers.get(span.adapter, -1)] * span.count
            if span.adapter is not None:
                tokens[span.adapter] += range(span.first, span.first + span.count)
                logits[span.adapter] += range(first_logit, first_logit + span.num_logits)
            first_logit += span.num_logits
        self._of_tokens = [(each, _rows(rows, len(owners), step.device)) for each, rows in tokens.items()]
        self._of_logits = [(each, _rows(rows, first_logit, step.device)) for each, rows in logits.items() if rows]
        self._owners_T = torch.tensor(owners, device=step.device)

    def _on_matrix(self, path: str) -> Callable[..., Tensor | None]:
        outer, _, rest = path.partition(".experts.")
        mixture = self._decoder.get_submodule(outer) if rest else None

        def hook(module: nn.Module, inputs: tuple[Tensor], out_RF: Tensor) -> Tensor | None:
            found = self._of_logits if path == "head" else self._of_tokens
            if isinstance(mixture, MoE) and self._owners_T is not None and mixture.rows is not None:
                owners_R = self._owners_T[mixture.rows]
                found = [(each, (owners_R == number).nonzero()[:, 0]) for number, (each, _) in enumerate(found)]
            concerned = [(each, rows) for each, rows in found if path in each.changes]
            if not concerned:
                return None
            out_RF = out_RF.clone()  # inference may hand out what another module keeps
            for adapter, rows in concerned:
                for change in adapter.changes[path]:
                    _apply(module, inputs[0], out_RF, rows, adapter.prepared["eager"][change])
            return out_RF

        return hook

    def _on_norm(self, path: str) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor | None:
            """Rows are tokens, but rows of logits before the head."""
            if self._owners_T is None or self._is_inside:
                return None
            found = self._of_tokens if len(inputs[0]) == len(self._owners_T) else self._of_logits
            concerned = [(each, rows) for each, rows in found if path in each.prepared["eager"]]
            if not concerned:
                return None
            out, self._is_inside = out.clone(), True
            try:
                for adapter, rows in concerned:
                    out[rows] = functional_call(module, adapter.prepared["eager"][path], (inputs[0][rows],))
            finally:
                self._is_inside = False
            return out

        return hook

    def _on_embedding(self, module: nn.Module, inputs: tuple[Tensor], out_TD: Tensor) -> Tensor | None:
        concerned = [(each, rows) for each, rows in self._of_tokens if each.embedding is not None]
        if not concerned:
            return None
        out_TD = out_TD.clone()
        for adapter, rows in concerned:
            change = adapter.embedding
            assert change is not None, "chosen for it"
            held, ids_R = adapter.prepared["eager"][change], inputs[0][rows]
            x_RD = held["table_VD"][ids_R] if "table_VD" in held else out_TD[rows]
            if "a_VR" in held:
                x_RD = (x_RD.float() + change.scale * product(held["a_VR"][ids_R].float(), held["b_DR"])).to(x_RD.dtype)
            if "rows_ND" in held:
                at_RN = ids_R[:, None] == held["ids_N"]
                x_RD = torch.where(at_RN.any(1)[:, None], held["rows_ND"][at_RN.int().argmax(1)], x_RD)
            out_TD[rows] = x_RD
        return out_TD


def _of_rank(tensor: Tensor, own_rows: Sequence[range] | None) -> Tensor:
    """Pick the rows of a norm's tensor that go with the heads of this rank."""
    return tensor if own_rows is None else torch.cat([tensor[each.start : each.stop] for each in own_rows])


def _norms_of(adapter: Adapter) -> dict[str, dict[str, Tensor]]:
    """Put the tensors of norms together by the paths of their modules."""
    found: dict[str, dict[str, Tensor]] = {}
    for parameter, tensor in adapter.norms.items():
        path, _, kind = parameter.rpartition(".")
        found.setdefault(path, {})[kind] = tensor
    return found


def _prepared(change: Change, own_rows: Sequence[range] | None, device: torch.device) -> PreparedChange:
    """Prepare a change. own_rows: the rows of the matrix that are here; None for all."""
    end = change.first + change.count
    if own_rows is None:
        return PreparedChange(change, _wide(change, device), slice(change.first, end), slice(None))
    rows = [row for each in own_rows for row in each]
    columns = [column for column, row in enumerate(rows) if change.first <= row < end]
    chosen = [rows[column] - change.first for column in columns]
    return PreparedChange(
        change, _wide(change, device), *(torch.tensor(each, device=device) for each in (columns, chosen))
    )


def _wide(change: Change, device: torch.device) -> dict[str, Tensor]:
    """Make the tensors of a change on the device of the model: in float32, but for a whole matrix."""
    names = ("a_RI", "b_OR", "factors_O", "bias_O")
    given = {name: getattr(change, name) for name in names}
    held = {name: tensor.float().contiguous().to(device) for name, tensor in given.items() if tensor is not None}
    return held if change.whole_OI is None else {**held, "whole_OI": change.whole_OI.to(device)}


def _of_embedding(change: EmbeddingChange, device: torch.device) -> dict[str, Tensor]:
    """Put the tensors of a change of the embedding on the device of the model; those with a row of each token in their
    own dtype.
    """
    names = ("a_VR", "rows_ND", "table_VD")
    held = {name: tensor.to(device) for name in names if (tensor := getattr(change, name)) is not None}
    held["ids_N"] = torch.tensor(change.ids, dtype=torch.int64, device=device)
    return held if change.b_RD is None else {**held, "b_DR": change.b_RD.float().t().contiguous().to(device)}


def _rows(rows: list[int], count: int, device: torch.device) -> Rows:
    return slice(None) if len(rows) == count else torch.tensor(rows, device=device)


def _apply(module: nn.Module, x_RI: Tensor, out_RF: Tensor, rows: Rows, prepared: PreparedChange) -> None:
    """Change the products of some rows, in place."""
    change, wide, columns, chosen = prepared
    if isinstance(columns, Tensor) and not len(columns):
        return
    own: Any = getattr(module, "bias", None)
    bias_O = None if own is None else own[columns].float()
    if "whole_OI" in wide:
        found_RO = product(x_RI[rows], wide["whole_OI"].to(x_RI.dtype))[:, chosen].float()
        found_RO = found_RO if bias_O is None else found_RO + bias_O
    else:
        found_RO = out_RF[rows][:, columns].float()
    if "a_RI" in wide:
        added_RO = change.scale * product(product(x_RI[rows].float(), wide["a_RI"]), wide["b_OR"])[:, chosen]
        if "factors_O" not in wide:
            found_RO = found_RO + added_RO
        else:  # DoRA: the bias stands outside
            plain_RO = found_RO if bias_O is None else found_RO - bias_O
            found_RO = wide["factors_O"][chosen] * (plain_RO + added_RO)
            found_RO = found_RO if bias_O is None else found_RO + bias_O
    if "bias_O" in wide:
        found_RO = found_RO + wide["bias_O"][chosen]
    changed_RF = out_RF[rows]
    changed_RF[:, columns] = found_RO.to(out_RF.dtype)
    out_RF[rows] = changed_RF


_ADAPTED: "WeakKeyDictionary[Decoder, AdaptedModules]" = WeakKeyDictionary()


def prepare(program: Eager, adapter: Adapter) -> None:
    """Make a program compute with an adapter where a step's spans ask for it."""
    _hook(program.decoder, adapter)


def prepare_aside(program: MicroBatched, adapter: Adapter) -> None:
    """Make a program of compiled functions compute with an adapter: by modules that no function is compiled of."""
    if program.adapted is None:
        program.adapted = _with_same_weights(program.decoder)
    _hook(program.adapted, adapter)


def _hook(decoder: Decoder, adapter: Adapter) -> None:
    if decoder not in _ADAPTED:
        _ADAPTED[decoder] = AdaptedModules(decoder)
    _ADAPTED[decoder].add(adapter)


def _with_same_weights(decoder: Decoder) -> Decoder:
    """Copy the modules of a decoder, which go on sharing every tensor, so that hooks of one are none of the other's."""
    shared = [*decoder.parameters(), *decoder.buffers(), decoder.description, decoder.config]
    return deepcopy(decoder, {id(each): each for each in shared})
