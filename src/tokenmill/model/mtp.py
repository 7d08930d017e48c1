"""The input of a layer that predicts further tokens (MTP), as data: the embedding of a token beside the row that the
head read for the token before it, both normed, times a matrix (arXiv 2412.19437, section 2.2).

Such a layer is a model of one layer. Its own output, normed for the head, is the row that its next draft reads. An
assistant of another model is given both as one row, as wide as they are there, and reads that model's rows of K and V.
"""

from collections import Counter
from dataclasses import dataclass

from tokenmill.model.blocks import Norm, Projection


@dataclass(frozen=True)
class MtpInput:
    """fc([norm(embedding), norm(row)]). norm: the shape of both norms, which have weights of their own; None where the
    row that is given has both, as they are.
    """

    norm: Norm | None
    fc: Projection

    name = "mtp_input"

    @staticmethod
    def of(norm: Norm, given_width: int) -> "MtpInput":
        """Describe the input of a layer whose residual stream is as wide as the norm. given_width: see ModelConfig."""
        fc = Projection("fc", given_width or 2 * norm.size, (norm.size,))
        return MtpInput(None if given_width else norm, fc)

    @property
    def matrices(self) -> Counter[Projection]:
        return Counter([self.fc])

    @property
    def norms(self) -> dict[str, Norm]:
        return {} if self.norm is None else {"embedding_norm": self.norm, "hidden_norm": self.norm}

    def roles(self) -> dict[str, Projection]:
        """Name its matrix by its role."""
        return {"fc": self.fc}
