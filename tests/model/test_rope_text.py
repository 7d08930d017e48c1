"""The text of a rope in saved files is made of its fields, whatever an interrupt did to `repr`."""

import reprlib

from tokenmill.model.config import Rope

ROPE = Rope(64, 10000.0, "yarn", (("factor", 4.0), ("original_max_position_embeddings", 32)))
SAVED = "Rope(dim=64, theta=10000.0, kind='yarn', scaling=(('factor', 4.0), ('original_max_position_embeddings', 32)))"


def test_the_text_is_that_of_earlier_files():
    assert repr(ROPE) == ROPE.text == SAVED


def test_an_interrupt_within_repr_does_not_change_it():
    """A dataclass's repr notes its object in a set, and an interrupt between that and its `try` leaves it there."""
    running = next(cell.cell_contents for cell in Rope.__repr__.__closure__ if isinstance(cell.cell_contents, set))
    key = (id(ROPE), reprlib.get_ident())
    running.add(key)
    try:
        assert repr(ROPE) == "..."
        assert ROPE.text == SAVED
    finally:
        running.discard(key)
