"""Weight schemes: the facts of each, and the choice of one.

A scheme alone knows the facts about its matrices that other rooms need: their bytes, their bits, where they run. Each
program makes a layout of its own of these facts. Facts need no tensor; the modules of the matrices are in matrix.py and
matrices.py. A dtype is given by its name.
"""

from collections.abc import Sequence

from tokenmill.errors import ConfigError
from tokenmill.kernels.devices import kind_of, why_no_onednn
from tokenmill.registry import SCHEMES, lookup
from tokenmill.settings.engine_config import DTYPES

GROUP = 32  # inputs of a row whose codes share a scale
REFERENCE = "dense"  # other schemes are compared with it: plain matrices, on every device
AS_STORED = "file"  # "auto" means it where a checkpoint is quantised: nothing is rounded again


class Scheme:
    """The storage of matrices, with all that other rooms need to know about it; here dense, in the model's dtype."""

    matrix: str = "plain"  # the module of a matrix, a key of MATRICES in the registry
    bits_per_weight: float | None = None  # scales included; None where the model's dtype or the file's codes decide
    is_integer: bool = False  # may have integer codes; programs may then round activations to 8 bits for each product
    is_plain: bool = True  # `weight` stays plain when it is filled: its rows can be multiplied apart, and looked up
    is_traceable: bool = True  # torch.compile and torch.export can trace the product
    keeps_codes: bool = False  # every matrix stays as the checkpoint stores it
    rounds_to: int | None = None  # bits of numbers in floating point, which are read in float32; None: not rounded
    min_agreement: float = 1.0  # the share of golden tokens that must be equal; 1 where whole texts must be

    @staticmethod
    def refuse(device: str, dtype: str) -> str | None:
        """Say why this scheme cannot serve there; None where it can."""
        return None

    def matrix_bytes(self, outputs: int, inputs: int, dtype: str, code_bits: float) -> int:
        """Count the bytes of one matrix as a PyTorch module, without its bias.

        code_bits: bits per number of the checkpoint's own codes, on average; 0 where it has none or they are unknown.
        """
        return outputs * inputs * DTYPES[dtype]


class PackedScheme(Scheme):
    """Plain matrices in oneDNN's own layout: float32 or bfloat16 on CPU."""

    matrix = "packed"
    is_plain = False
    is_traceable = False

    @staticmethod
    def refuse(device: str, dtype: str) -> str | None:
        return why_no_onednn(dtype) if kind_of(device) == "cpu" else f"needs a CPU, and the device is {device}"


class _Integer(Scheme):
    """Codes of a checkpoint are kept exactly; floating-point rows are rounded when the matrix is complete."""

    matrix = "codes"
    is_integer = True
    is_plain = False
    # 255 of 256 tokens were measured with the codes of a file; attention scores that are 1.3 times too large give 245.
    min_agreement = 0.98

    def matrix_bytes(self, outputs: int, inputs: int, dtype: str, code_bits: float) -> int:
        # An estimate for the codes of a checkpoint, which may be of several kinds.
        bits = self.rounds_to or code_bits
        if not bits:
            return super().matrix_bytes(outputs, inputs, dtype, code_bits)
        # A byte for each code of a group, a float32 scale and, with 4 bits, a float32 minimum.
        return outputs * -(-inputs // GROUP) * (GROUP + (8 if bits < 7 else 4))


class Q8(_Integer):
    """8 bits and a scale for each 32 inputs. Rows of a file in 4 or 8 bits are kept."""

    bits_per_weight = 8.5
    rounds_to = 8


class Q4(_Integer):
    """4 bits, a scale and a minimum for each 32 inputs. 4-bit rows of a file are kept."""

    bits_per_weight = 5.0
    rounds_to = 4
    min_agreement = 0.9  # 242 of 256 were measured with all matrices rounded to 4 bits


class AsStored(_Integer):
    """Matrices as the checkpoint stores them: codes stay codes, floating point stays floating point."""

    keeps_codes = True


def find_scheme(name: str) -> Scheme:
    scheme: Scheme = lookup(SCHEMES, name, "scheme")()
    return scheme


def choose(name: str, device: str, dtype: str, usable: Sequence[str]) -> tuple[str, Scheme]:
    """Choose the scheme of that name, or with "auto" the first of the `usable` ones that does not refuse."""
    reasons = {}
    for candidate in usable if name == "auto" else [name]:
        scheme = find_scheme(candidate)
        reason = scheme.refuse(device, dtype)
        if reason is None:
            return candidate, scheme
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate} {reason}" for candidate, reason in reasons.items())
    raise ConfigError("scheme", name, f"{refusals}; use auto, or another dtype or device")
