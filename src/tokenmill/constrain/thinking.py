"""A limit on the tokens that a model thinks for: where it is reached, the closing mark is what comes next.

It depends on the output's tokens alone, so a drafted position is judged as any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """At most `budget` tokens between two marks, which are given as token ids. is_open: the prompt has the first mark.

    Only a text that begins with the first mark, or whose prompt has it, thinks.
    """

    budget: int
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    is_open: bool = False

    @property
    def _first(self) -> int:
        return 0 if self.is_open else len(self.opening)

    def concerns(self, first: int, last: int) -> bool:
        """Whether a token may be forced after so many tokens of output, from `first` to before `last`."""
        end = self._first + self.budget
        return first < end + len(self.closing) and end < last

    def forced(self, output: Sequence[int]) -> int | None:
        """Find the token of the closing mark that must come after these tokens, if one must."""
        first, end = self._first, self._first + self.budget
        if not end <= len(output) < end + len(self.closing) or tuple(output[:first]) != self.opening[:first]:
            return None
        thought = tuple(output[first:end])
        if any(thought[at : at + len(self.closing)] == self.closing for at in range(len(thought))):
            return None
        begun = next(n for n in range(len(self.closing) - 1, -1, -1) if thought[len(thought) - n :] == self.closing[:n])
        place = begun + len(output) - end
        return self.closing[place] if place < len(self.closing) else None
