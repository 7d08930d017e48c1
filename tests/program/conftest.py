"""What the tests of programs share."""

import pytest


@pytest.fixture
def wide_tiles(monkeypatch):
    """Four times as many outputs in a tile, where kernels are interpreted: a program costs its steps, and little more
    for wider ones. The tests of the kernels keep the width that GPUs have.
    """
    matrices = pytest.importorskip("tokenmill.program.graphs.matrices")
    if matrices.INTERPRETED:
        monkeypatch.setattr(matrices, "OUTPUTS", 4 * matrices.OUTPUTS)
