"""Multi-head latent attention as data (DeepSeek V2, arXiv 2405.04434): one row of a token serves all heads as K and V.

A row is a normed latent vector and a rotated part. Each head's key and value would be the latent times matrices of its
own; these are multiplied to the query and to what attention has summed up instead, so that rows are never expanded.
"""

from dataclasses import dataclass

from tokenmill.cache.spec import RowsSpec
from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import Rope


@dataclass(frozen=True)
class LatentBlock:
    """It keeps one row of a token, latent_dim + rope_dim wide.

    A head's query has plain_dim numbers, which its matrix among `keys` brings to latent_dim, then rope_dim rotated
    ones. down: q, or its latent a where `q_up` makes q of it, then the row r. value: of one head, from latent_dim.
    pairs: whether neighbours among a file's rows rotate together. temperature: see ModelConfig.
    """

    num_heads: int
    latent_dim: int
    plain_dim: int
    rope_dim: int
    down: Projection
    key: Projection
    value: Projection
    out: Projection
    q_norm: Norm | None
    q_up: Projection | None
    kv_norm: Norm
    rope: Rope | None
    shape: AttentionShape
    pairs: bool = True
    temperature: tuple[float, int] | None = None

    name = "latent"

    @property
    def row_dim(self) -> int:
        """The width of a row."""
        return self.latent_dim + self.rope_dim

    @property
    def query_dim(self) -> int:
        """The width of a head's query before it is brought to the width of a row."""
        return self.plain_dim + self.rope_dim

    @property
    def keeps(self) -> RowsSpec:
        return self.rows

    @property
    def rows(self) -> RowsSpec:
        """The rows that it reads."""
        return RowsSpec(1, self.row_dim, self.shape.window, is_latent=True)

    @property
    def matrices(self) -> dict[str, Projection]:
        heads = range(self.num_heads)
        of_heads = {
            f"{role}.{head}": each for role, each in (("keys", self.key), ("values", self.value)) for head in heads
        }
        return {"down": self.down, **({} if self.q_up is None else {"q_up": self.q_up}), **of_heads, "out": self.out}

    @property
    def norms(self) -> dict[str, Norm]:
        return {**({} if self.q_norm is None else {"q_norm": self.q_norm}), "kv_norm": self.kv_norm}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        return {}


def latent_attention(
    hidden: int,
    heads: int,
    *,
    q_latent: int | None,
    latent: int,
    plain: int,
    rope_dim: int,
    value: int,
    rope: Rope | None,
    scale: float,
    bias: bool = False,
    eps: float = 1e-6,
    pairs: bool = True,
    temperature: tuple[float, int] | None = None,
) -> LatentBlock:
    """Describe latent attention. q_latent: None where one matrix makes q. bias: of `down` and `out`."""
    queries = heads * (plain + rope_dim)
    return LatentBlock(
        heads,
        latent,
        plain,
        rope_dim,
        down=Projection(
            "down", hidden, (q_latent or queries, latent + rope_dim), bias, ("q" if q_latent is None else "a", "r")
        ),
        key=Projection("key", plain, (latent,)),
        value=Projection("value", latent, (value,)),
        out=Projection("out", heads * value, (hidden,), bias),
        q_norm=None if q_latent is None else Norm(q_latent, "rms", eps),
        q_up=None if q_latent is None else Projection("q_up", q_latent, (queries,)),
        kv_norm=Norm(latent, "rms", eps),
        rope=rope,
        shape=AttentionShape(scale),
        pairs=pairs,
        temperature=temperature,
    )
