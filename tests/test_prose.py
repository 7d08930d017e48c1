"""The docstrings and comments of the package and of native/ keep to the rules of prose that a pattern can hold."""

import pytest

from tests import prose

FAULTY = '''"""Rooms: what is none stays."""


def errors(answers):
    """Whether there are some, and those of others."""
    return answers  # none is left


class Some:
    """What it is made of."""

    # fmt: none are noted
    def of(self):
        """Return that of the other."""
'''


def test_no_place_needs_two_readings():
    assert not prose.places()


def test_faults_are_found(tmp_path):
    (tmp_path / "some.py").write_text(FAULTY)
    found = sorted(prose.python_places(tmp_path / "some.py"))
    assert found == [
        (1, "what is none"),
        (5, "begins with Whether"),
        (5, "those of"),
        (6, "none is"),
        (10, "begins with What"),
        (12, "none are"),
        (14, "that of the"),
    ]
    (tmp_path / "some.h").write_text("int those_of; // those of a rank\n")
    assert list(prose.native_places(tmp_path / "some.h")) == [(1, "those of")]


@pytest.mark.parametrize("words", ["Say whether it is so.", "Find the rows of the step."])
def test_a_verb_is_no_fault(words, tmp_path):
    (tmp_path / "some.py").write_text(f'def some():\n    """{words}"""\n')
    assert not list(prose.python_places(tmp_path / "some.py"))
