"""The cache folder of the tests of tests/weights/packed, for loads that keep copies in it."""

from tests.weights.packed.conftest import folder, llama

__all__ = ["folder", "llama"]
