"""An adapter as programs read it: what it changes of each matrix, of the embedding and of norms.

A row of a step is computed with one adapter or with none. The digest of the adapter's bytes separates the rows of the
cache wherever rows are shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Change:
    """The change of rows [first, first + count) of a matrix W, whose product then is

        factors · (W x + scale · B (A x)) + bias,

    to which the bias of the matrix is added. whole: W' in the place of W; then there is nothing else but `bias`.
    a_RI, b_OR: in the dtype of the model, R the rank; factors_O, bias_O: float32.
    """

    first: int
    count: int
    a_RI: Tensor | None = None
    b_OR: Tensor | None = None
    scale: float = 1.0
    factors_O: Tensor | None = None
    bias_O: Tensor | None = None
    whole_OI: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        each = (self.a_RI, self.b_OR, self.factors_O, self.bias_O, self.whole_OI)
        return [tensor for tensor in each if tensor is not None]


@dataclass(frozen=True, eq=False)
class EmbeddingChange:
    """The change of rows of the embedding: row i + scale · a_VR[i] · b_RD. ids: of the rows that rows_ND replace.

    table_VD: replaces all rows; a_VR then adds to its rows.
    """

    a_VR: Tensor | None = None
    b_RD: Tensor | None = None
    scale: float = 1.0
    ids: tuple[int, ...] = ()
    rows_ND: Tensor | None = None
    table_VD: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        each = (self.a_VR, self.b_RD, self.rows_ND, self.table_VD)
        return [tensor for tensor in each if tensor is not None]


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that is loaded for one model. name: under which requests ask for it. path: where it was read.

    digest: sha256 of the bytes of its files. changes: of each matrix, by its path (model/parameters.py), ordered by
    rows. norms: what stands in the place of a norm's weight or bias, by its name among the parameters, in the dtype of
    the model. left_out: tensors for parts of the model that are not the text's, which nothing reads.
    prepared: what the program has made of it.
    """

    name: str
    path: str
    digest: bytes
    changes: Mapping[str, tuple[Change, ...]]
    embedding: EmbeddingChange | None = None
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    prepared: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The largest rank of a change."""
        ranks = [len(each.a_RI) for changes in self.changes.values() for each in changes if each.a_RI is not None]
        of_embedding = None if self.embedding is None else self.embedding.a_VR
        return max([*ranks, 0 if of_embedding is None else of_embedding.shape[1]], default=0)

    @property
    def num_bytes(self) -> int:
        parts = [change for changes in self.changes.values() for change in changes]
        others = [*([] if self.embedding is None else self.embedding.tensors), *self.norms.values()]
        return sum(tensor.nbytes for part in parts for tensor in part.tensors) + sum(t.nbytes for t in others)
