"""The public surface changes on purpose only."""

import difflib

from tests.compatibility.surface import PAGE, page


def test_the_public_surface_is_what_public_txt_says():
    """Where it is not, and that is meant: run `python -m tests.compatibility.surface`, say so in CHANGELOG.md, and keep
    to docs/compatibility.md, which says what may go and how it is announced."""
    before, now = PAGE.read_text(encoding="utf-8").splitlines(), page().splitlines()
    changes = list(difflib.unified_diff(before, now, "public.txt", "now", lineterm="", n=0))
    assert not changes, "\n".join(changes[:60])
