"""The random number of a token: a function of (seed of the sequence, position of the token), with no state.

A generator with state would make a token depend on how many numbers were drawn before it, hence on the batch, on
drafts and on preemption. A counter-based hash in Python's integers does not, on any machine. The mixing function is the
output step of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014;
public-domain C by Vigna, https://prng.di.unimi.it/splitmix64.c). Saved sequences depend on these numbers:
never change them.
"""

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: SplitMix64's step between counters


def uniform(seed: int, position: int) -> float:
    """Compute a number in the open interval (0, 1), a multiple of 2**-53. Seeds to 2**63 - 1, positions to 2**31."""
    key = _mix(seed + _GAMMA)
    # Without the key in the second round, two seeds whose keys differ by a multiple of gamma would draw the same
    # numbers, shifted by some positions.
    bits = _mix(_mix(key + (position + 1) * _GAMMA) ^ key) >> 11
    return (bits or 1) * 2.0**-53


def _mix(value: int) -> int:
    """Map 64-bit integers one to one, so that every bit of the input moves about half of the output."""
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
