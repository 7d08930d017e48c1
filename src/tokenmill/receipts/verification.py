"""The outcome of checking a receipt."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

VERDICTS = {
    "verified": "everything is as the receipt says, and each token is the one that the engine chooses",
    "consistent": "nothing was found wrong, but another build or other settings than the receipt's were there, "
    "or the text that an answer shows was not compared",
    "refused": "something cannot be as the receipt says",
    "unchecked": "the tokens were not checked",
    "unreadable": "it is no receipt, or one of a newer format",
}
"""The possible verdicts, and what they mean."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as a receipt says. what: the field. position: of a token, counted from the first new one.

    claimed, found: what the receipt says, and what the engine says in its place; None where there is no value.
    """

    what: str
    message: str
    position: int | None = None
    claimed: Any = None
    found: Any = None


@dataclass(frozen=True)
class Verification:
    """The outcome of checking a receipt. verdict: one of VERDICTS. findings: what is wrong; a verified receipt has
    none.

    notes: what was otherwise here than where the receipt was made, and what that means.
    """

    verdict: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    num_tokens: int = 0

    @property
    def is_verified(self) -> bool:
        """True if everything was checked and is as the receipt says."""
        return self.verdict == "verified"

    @property
    def reasons(self) -> tuple[str, ...]:
        """The findings and the notes as sentences."""
        return (*(each.message for each in self.findings), *self.notes)


def refused(findings: Iterable[Finding], notes: Iterable[str] = (), num_tokens: int = 0) -> Verification:
    """Refuse a receipt for what is wrong with it."""
    return Verification("refused", tuple(findings), tuple(notes), num_tokens)


def with_shown(found: Verification, finding: Finding | None, note: str | None) -> Verification:
    """Add what an answer shows to the outcome: another text than the receipt's, or a text that was not compared."""
    notes = found.notes if note is None else (*found.notes, note)
    if finding is not None:
        return refused([*found.findings, finding], notes, found.num_tokens)
    is_weaker = note is not None and found.is_verified
    return replace(found, verdict="consistent" if is_weaker else found.verdict, notes=notes)
