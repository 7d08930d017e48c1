"""The tensors of AWQ's layout, as rows of codes. They are only read."""

from collections.abc import Mapping

from torch import Tensor

from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.words import fields_of, of_zeros

ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # where the codes of columns 0, 1, … lie among the eight of a word


def unpack(layout: AWQ, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes."""
    codes_KR, zeros_GR = (fields_of(parts[part], 4)[..., ORDER].flatten(1) for part in ("qweight", "qzeros"))
    return of_zeros(layout, codes_KR.t(), zeros_GR, parts["scales"])
