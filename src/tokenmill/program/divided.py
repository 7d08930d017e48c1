"""The decoder of one rank: the same modules, but each matrix has some of its rows here, and gathers the other ranks'
rows.

Products are the only thing that is divided, with the mixing of each head or channel. Everything else, norms,
activations, routers and sums, is done by every rank on whole rows, by the operations of one process on the same shapes,
so that the bits are the same as in one process. shares.py says which rows a rank has, mixer_shares.py which heads. A
layer exchanges four times: the results of the heads, and the products out, gate with up, and down. The modules of
model/ do not know of this: some of them are replaced here.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tokenmill.model.beside_module import MixtureBeside
from tokenmill.model.decoder import Decoder, Layer
from tokenmill.model.experts import MoE
from tokenmill.model.layers import MLP
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.attention_module import Attention
from tokenmill.model.mtp_module import MtpDecoder
from tokenmill.model.parameters import join, matrices_of
from tokenmill.parallel.collectives import Group
from tokenmill.parallel.division import places
from tokenmill.program.mixer_shares import share_of
from tokenmill.program.shares import computed_rows, matrix_rows, table_rows
from tokenmill.quant.matrix import Matrix, make_matrix, product
from tokenmill.quant.stored import Stored
from tokenmill.quant.ways import finish_products
from tokenmill.weights.load import RETURNED, empty_decoder, fill_small, map_table
from tokenmill.weights.source import EMBEDDING, HEAD, WeightSource, return_memory

OWN_ROWS = "own_rows"
"""The name by which a module has its rows among those of all ranks; one that is whole lacks it."""


class Gathered(nn.Module):
    """A matrix, x → all of its outputs, of which this rank computes its share of the rows."""

    def __init__(self, module: nn.Module, sizes: Sequence[int], group: Group) -> None:
        super().__init__()
        self.module, self._sizes, self._group = module, sizes, group

    def forward(self, x_TD: Tensor) -> Tensor:
        return self._group.gather(self.module(x_TD), self._sizes)


class Picked(nn.Module):
    """A matrix, x → some of its outputs: the rows beside them are computed too, so that all have the same bits."""

    def __init__(self, module: nn.Module, picked: Sequence[range]) -> None:
        super().__init__()
        self.module, self._picked = module, picked

    def forward(self, x_TD: Tensor) -> Tensor:
        out_TF = self.module(x_TD)
        return torch.cat([out_TF[:, each.start : each.stop] for each in self._picked], dim=-1)


class OfAllHeads(nn.Module):
    """A module that needs the heads of all ranks, given the heads of this rank: the rows that follow attention."""

    def __init__(self, module: nn.Module, sizes: Sequence[int], group: Group) -> None:
        super().__init__()
        self.module, self._sizes, self._group = module, sizes, group

    def forward(self, own_TF: Tensor) -> Tensor:
        out: Tensor = self.module(self._group.gather(own_TF, self._sizes))
        return out


class NormOfAllHeads(OfAllHeads):
    """A norm of the heads of all ranks as one row, of which this rank goes on with its own heads."""

    def forward(self, own_TF: Tensor) -> Tensor:
        first = sum(self._sizes[: self._group.rank])
        return super().forward(own_TF)[:, first : first + own_TF.shape[1]].contiguous()


class DividedEmbedding(nn.Module):
    """The embedding's rows of this rank, in which it looks tokens up; the other ranks give the other rows."""

    def __init__(self, weight: Tensor, rows: range, group: Group) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.rows, self._group = rows, group

    def forward(self, token_ids_T: Tensor) -> Tensor:
        own_T = token_ids_T - self.rows.start
        is_own_T = (own_T >= 0) & (own_T < len(self.rows))
        found_TD = self.weight[own_T.clamp(0, len(self.rows) - 1)]
        return self._group.merge(torch.where(is_own_T[:, None], found_TD, 0).contiguous())


class TiedHead(nn.Module):
    """The rows of the embedding as rows of the head."""

    bias = None

    def __init__(self, embedding: DividedEmbedding) -> None:
        super().__init__()
        self.weight = embedding.weight  # the same parameter
        setattr(self, OWN_ROWS, [embedding.rows])

    def forward(self, x_RD: Tensor) -> Tensor:
        return product(x_RD, self.weight)


def undivided(module: nn.Module) -> nn.Module:
    """Find the module itself in what exchanges its inputs or outputs."""
    while isinstance(module, Gathered | Picked | OfAllHeads):
        module = module.module
    return module


class Share(NamedTuple):
    """A matrix to fill: its path, and the ranges of its rows that are here."""

    layer: int | None
    role: str
    matrix: Matrix
    rows: list[range]


def load_share(
    source: WeightSource, num_positions: int, fused: Collection[str], group: Group, lent: Decoder | None = None
) -> Decoder:
    """Load this rank's decoder. Of each divided matrix it reads this rank's rows alone. lent: has the same embedding
    and head, divided in the same way, which are not read again.
    """
    decoder = empty_decoder(source.model, source.scheme, num_positions, fused)
    matrices = {module for module in decoder.modules() if isinstance(module, Matrix)}
    tables = {decoder.embedding, *([] if decoder.per_layer is None else [decoder.per_layer.embedding])}
    fill_small(decoder, source, but={*tables, *matrices})
    shares = _Divider(decoder, source, group).divide(lent)
    shares.sort(key=lambda each: -sum(map(len, each.rows)) * _inputs(each.matrix))
    for number, share in enumerate(shares):  # the largest first, while most memory is free
        _fill(share, source)
        if number % RETURNED == 0:
            return_memory()
    decoder.finish()
    return_memory()
    return decoder


def _fill(share: Share, source: WeightSource) -> None:
    layer, role, matrix, rows = share
    parts = [part for each in rows for part in source.matrix(layer, role, each)]
    matrix.fill(parts if source.scheme.is_integer or len(parts) == 1 else [Stored.joined(parts)])


def _inputs(matrix: Matrix) -> int:
    return int(matrix.get_parameter("weight").shape[1])


class _Divider:
    """The replacement of modules in a decoder that has no memory yet."""

    def __init__(self, decoder: Decoder, source: WeightSource, group: Group) -> None:
        self._decoder, self._source, self._group = decoder, source, group
        self._matrices = matrices_of(decoder.description)
        self._table = table_rows(decoder.config.vocab_size, group.size)
        self._shares: list[Share] = []

    def divide(self, lent: Decoder | None) -> list[Share]:
        """Replace the modules; list the matrices that are to be filled. lent: see load_share."""
        decoder = self._decoder
        if isinstance(decoder, MtpDecoder):
            decoder.mtp.fc = self._rows(None, "mtp.fc", decoder.mtp.fc)
        self._layers()
        if lent is not None:
            decoder.embedding, decoder.head = lent.embedding, lent.head
            return self._shares
        self._embedding()
        if decoder.head is not None:
            decoder.head = self._rows(None, HEAD, decoder.head)
        else:
            assert isinstance(decoder.embedding, DividedEmbedding)
            sizes = list(map(len, self._table))
            decoder.head = Gathered(TiedHead(decoder.embedding), sizes, self._group)  # type: ignore[assignment]
        return self._shares

    def _layers(self) -> None:
        decoder = self._decoder
        for number, layer in enumerate(decoder.layers):
            assert isinstance(layer, Layer)
            if layer.mixes:
                for block in layer.description.mixers:
                    self._mixer(number, layer.get_submodule(block.name), block)
            if isinstance(layer.mlp, MLP):
                self._mlp(number, "mlp", layer.mlp)
            elif isinstance(layer.mlp, MoE):
                self._mixture(number, "mlp", layer.mlp)
            elif isinstance(layer.mlp, MixtureBeside):
                self._mlp(number, "mlp.dense", layer.mlp.dense)
                self._mixture(number, "mlp.mixture", layer.mlp.mixture)
            self._inputs(number, layer.per_layer, layer.description.per_layer)
        self._inputs(None, decoder.per_layer, decoder.description.per_layer)

    def _embedding(self) -> None:
        source, rows = self._source, self._table[self._group.rank]
        parts = source.matrix(None, EMBEDDING, rows)
        values = torch.cat([part.values().to(source.dtype) for part in parts])
        self._decoder.embedding = DividedEmbedding(values, rows, self._group)  # type: ignore[assignment]
        inputs = self._decoder.description.per_layer
        if inputs is not None and not map_table(self._decoder, source):
            rows = table_rows(inputs.vocab_size, self._group.size)[self._group.rank]
            values = source.tensor("per_layer.embedding.weight")[rows.start : rows.stop].clone()
            self._decoder.per_layer.embedding = DividedEmbedding(values, rows, self._group)

    def _inputs(self, layer: int | None, module: Any, block: Any) -> None:
        """Divide the matrices of inputs of layers."""
        for role in {} if block is None else block.roles():
            module.set_submodule(role, self._rows(layer, f"per_layer.{role}", module.get_submodule(role)))

    def _mlp(self, layer: int, role: str, mlp: MLP) -> None:
        mlp.up = self._rows(layer, f"{role}.up", mlp.up)
        mlp.down = self._rows(layer, f"{role}.down", mlp.down)

    def _mixture(self, layer: int, role: str, moe: MoE) -> None:
        moe.router = self._rows(layer, f"{role}.router", moe.router)
        if moe.latent_in is not None and moe.latent_out is not None:
            moe.latent_in = self._rows(layer, f"{role}.latent_in", moe.latent_in)
            moe.latent_out = self._rows(layer, f"{role}.latent_out", moe.latent_out)
        for number, expert in enumerate(moe.experts):
            assert isinstance(expert, MLP)
            self._mlp(layer, f"{role}.experts.{number}", expert)
        if moe.shared is not None:
            self._mlp(layer, f"{role}.shared", moe.shared)
        if moe.shared_gate is not None:
            moe.shared_gate = self._rows(layer, f"{role}.shared_gate", moe.shared_gate)

    def _rows(self, layer: int | None, role: str, matrix: Matrix) -> Matrix:
        """Divide the rows of a matrix, unless every rank has all of them."""
        projection = self._matrices[join(layer, role)]
        rows = matrix_rows(projection, self._source.scheme, self._group.size)
        own = self._part(layer, role, matrix, [range(projection.outputs) if rows is None else rows[self._group.rank]])
        made: Any = own if rows is None else Gathered(own, list(map(len, rows)), self._group)
        finish_products(made, projection.parts, projection.multipliers, projection.clip)
        return made  # type: ignore[no-any-return]

    def _part(self, layer: int | None, role: str, matrix: Matrix, rows: list[range]) -> Matrix:
        """Make a matrix of these rows, which is filled later; its bias is there at once."""
        has_bias = matrix.bias is not None
        with torch.device("meta"):
            part = make_matrix(self._source.scheme, _inputs(matrix), sum(map(len, rows)), has_bias)
        part.eval().requires_grad_(False)
        setattr(part, OWN_ROWS, rows)
        if has_bias:
            bias = self._source.tensor(f"{join(layer, role)}.bias")
            kept = torch.cat([bias[each.start : each.stop] for each in rows])
            part.bias = nn.Parameter(kept, requires_grad=False)
        self._shares.append(Share(layer, role, part, rows))
        return part

    def _mixer(self, layer: int, mixer: nn.Module, block: Mixer) -> None:
        """Give the layer the heads or channels of this rank; the module that joins them takes the results of all."""
        size, scheme = self._group.size, self._source.scheme
        shares = [share_of(block, rank, size) for rank in range(size)]
        own = shares[self._group.rank]
        for role, wanted in own.rows.items():
            rows = computed_rows(block.matrices[role], wanted, scheme)
            whole = mixer.get_submodule(role)
            assert isinstance(whole, Matrix)
            part = self._part(layer, f"{block.name}.{role}", whole, rows)
            is_wider = sum(map(len, rows)) > sum(map(len, wanted))
            made = Picked(part, places(wanted, rows)) if is_wider else part
            own_matrix = own.block.matrices[role]
            finish_products(made, own_matrix.parts, own_matrix.multipliers, own_matrix.clip)
            mixer.set_submodule(role, made)
        for name, ranges in own.vectors.items():
            _keep(mixer, name, ranges)
        for role in block.matrices.keys() - own.rows.keys():
            other = mixer.get_submodule(role)
            assert isinstance(other, Matrix)
            setattr(mixer, role, self._rows(layer, f"{block.name}.{role}", other))
        if own.joined:
            joined = OfAllHeads(getattr(mixer, own.joined), [share.width for share in shares], self._group)
            setattr(mixer, own.joined, joined)
        if isinstance(mixer, Attention):
            self._attention(mixer, [share.block for share in shares])
        else:
            mixer.block = own.block  # type: ignore[assignment]

    def _attention(self, attention: Attention, blocks: list[Any]) -> None:
        """Tell the module its numbers of heads, and divide norms that take all heads of Q or K as one row."""
        own = blocks[self._group.rank]
        attention.num_heads, attention.num_kv_heads = own.num_heads, own.num_kv_heads
        attention.num_gates = own.num_heads if own.gated else 0
        if own.qk_norms and not own.norms_heads:
            q_sizes, k_sizes = [each.out.inputs for each in blocks], [each.qkv.parts[1] for each in blocks]
            attention.q_norm = NormOfAllHeads(attention.q_norm, q_sizes, self._group)
            attention.k_norm = NormOfAllHeads(attention.k_norm, k_sizes, self._group)


def _keep(module: nn.Module, name: str, ranges: list[range]) -> None:
    """Keep some rows of a parameter, and note them in its module; name: its path within the module."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    setattr(owner, OWN_ROWS, ranges)
    whole = module.get_parameter(name)
    kept = torch.cat([whole[each.start : each.stop] for each in ranges])
    setattr(owner, last, nn.Parameter(kept, requires_grad=False))
