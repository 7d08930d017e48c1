"""Codes of 4 bits, two in a byte, and MXFP4: numbers of 4 bits in floating point (E2M1) with powers of 2 as scales."""

import torch
from torch import Tensor

_TWICE = (0, 1, 2, 3, 4, 6, 8, 12)


def joined_nibbles(codes: Tensor) -> Tensor:
    """Join […, 2 n] codes of 4 bits to […, n] bytes, the earlier of two neighbours in the low half."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def split_nibbles(bytes_: Tensor) -> Tensor:
    """Split […, n] bytes into […, 2 n] codes of 4 bits: the inverse of joined_nibbles."""
    return torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten(-2)


def twice_of(codes: Tensor) -> Tensor:
    """Compute twice the values of E2M1 codes, int16: a sign, two bits of an exponent, one of a fraction."""
    table = torch.tensor([*_TWICE, *(-twice for twice in _TWICE)], dtype=torch.int16, device=codes.device)
    return table[codes.int()]


def eights_of(codes: Tensor) -> Tensor:
    """Compute the codes of 8 bits, whose zero is 128, that say twice the values of E2M1 codes."""
    return (twice_of(codes) + 128).to(torch.uint8)


def e2m1_of(eights: Tensor) -> Tensor | None:
    """Find the E2M1 codes of such codes of 8 bits, uint8; None where one of these says another number."""
    codes = torch.tensor([*range(8), *range(9, 16)], dtype=torch.uint8, device=eights.device)  # 8 is -0
    table = torch.full((256,), 16, dtype=torch.uint8, device=eights.device)
    table[eights_of(codes).int()] = codes
    found = table[eights.int()]
    return None if bool((found > 15).any()) else found


def powers_of(exponents: Tensor, added: int = 127) -> Tensor:
    """Compute the scales of exponents from 0 to 255, float32: powers of 2, with `added` to each exponent. The exponents
    may be of the type of such scales, float8_e8m0fnu.
    """
    ones = torch.ones(exponents.shape, device=exponents.device)
    return torch.ldexp(ones, exponents.view(torch.uint8).int() - added)


def exponents_of(scales: Tensor, added: int = 127) -> Tensor | None:
    """Find the exponents of scales, uint8: the inverse of powers_of; None where one of them is no such power of 2."""
    halves, exponents = torch.frexp(scales.float())
    exponents = exponents + (added - 1)
    known = (halves == 0.5) & (exponents >= 0) & (exponents <= 255)
    return exponents.to(torch.uint8) if bool(known.all()) else None
