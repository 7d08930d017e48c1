"""The rows that a model's head reads, kept of the last tokens of each text for what drafts beside the model.

Texts that have ended keep their rows, too, until max_texts others were computed. A text whose beginning was found in
the cache computes no rows there: they are copied from a text with the same tokens, such as the turn before.
"""

from collections.abc import Sequence as List

from torch import Tensor

from tokenmill.schedule.sequence import Plan, Work

ROWS = 2048  # 20 MB of a model with 2,560 numbers in a row; an MTP layer reads most from tokens that are nearer


class TextRows:
    """Rows of the last tokens of one text: of its tokens [first, end). salt: of the text's blocks, see Kept; None where
    other conditions than this engine's computed a part of the text. read_from: the token from which on an MTP layer
    reads the text, or read one with the same beginning.
    """

    def __init__(self, salt: bytes | None = b"") -> None:
        self.salt, self.first, self.end, self.read_from = salt, 0, 0, 1
        self._tokens: List[int] = ()
        self._drafts: tuple[int, ...] = ()  # the last tokens before `end`, which the text may not have taken
        self._rows_CD: Tensor | None = None

    def save(self, tokens: List[int], start: int, rows_TD: Tensor, drafts: tuple[int, ...] = ()) -> None:
        """Keep the rows of tokens from `start` on, which take the place of rows that are there. tokens: of the text.
        drafts: the last tokens with rows, which are not in the text yet.
        """
        self._cut(min(self.num_alike(tokens), start))
        self._tokens, self._drafts = tokens, drafts
        if start != self.end:  # rows between are not known
            self.first = self.end = start
        if (skipped := len(rows_TD) - ROWS) > 0:
            self.first, self.end, rows_TD = start + skipped, start + skipped, rows_TD[skipped:]
        kept, room = self.end - self.first, 0 if self._rows_CD is None else len(self._rows_CD)
        if kept + len(rows_TD) > room:
            kept = min(kept, ROWS)
            new_CD = rows_TD.new_empty((min(max(2 * (kept + len(rows_TD)), 64), 2 * ROWS), rows_TD.shape[1]))
            if kept:
                new_CD[:kept] = self.rows(self.end - kept, self.end)
            self._rows_CD, self.first = new_CD, self.end - kept
        assert self._rows_CD is not None
        self._rows_CD[kept : kept + len(rows_TD)] = rows_TD
        self.end += len(rows_TD)

    def rows(self, first: int, end: int) -> Tensor:
        """Return the rows of the tokens [first, end), which are all known."""
        assert self._rows_CD is not None and self.first <= first < end <= self.end
        return self._rows_CD[first - self.first : end - self.first]

    def copy(self, tokens: List[int], end: int) -> "TextRows":
        """Copy the rows before `end`, of which there is one at least, for a text that has the same tokens there."""
        copied = TextRows(self.salt)
        copied.read_from = self.read_from
        copied.save(tokens, self.first, self.rows(self.first, end))
        return copied

    def num_alike(self, tokens: List[int]) -> int:
        """Count the tokens at the beginning, before `end`, with which the rows were computed. A list of tokens only
        grows.
        """
        before, count = self._tokens, self.end - len(self._drafts)
        if before is tokens or before[:count] == tokens[:count]:
            return count + _num_equal(self._drafts, tokens[count : self.end])
        return _num_equal(before, tokens)

    def _cut(self, end: int) -> None:
        """Forget the rows from `end` on."""
        self.end = min(self.end, end)
        self.first = min(self.first, self.end)


class TargetRows:
    """The rows of the texts of the model whose tokens are drafted: of the max_texts that were computed last."""

    def __init__(self, max_texts: int) -> None:
        self._max_texts = max_texts
        self.texts: dict[int, TextRows] = {}  # by the text's id, the least recently computed first

    def given(self, plan: Plan) -> None:
        """Give nothing: the model reads tokens alone."""

    def save(self, plan: Plan, firsts: List[int], hidden_TD: Tensor) -> None:
        """Keep the rows of a step's texts."""
        for work, first in zip(plan.work, firsts, strict=True):
            rows = self._rows_of(work)
            rows.save(work.sequence.tokens, work.start, hidden_TD[first : first + work.count], work.drafts)
            self.texts[work.sequence.id] = rows
        while len(self.texts) > self._max_texts:
            del self.texts[next(iter(self.texts))]

    def _rows_of(self, work: Work) -> TextRows:
        """Take the rows of a text; where it goes on behind them, copy the rows of a text with the same tokens."""
        text, kept = work.sequence, work.sequence.kept
        salt = kept.salt if kept.is_own else None
        rows = self.texts.pop(text.id, None)
        if rows is None or rows.salt != salt:
            rows = TextRows(salt)
        if salt is None or rows.num_alike(text.tokens) >= work.start:
            return rows
        others = [each for each in self.texts.values() if each.salt == salt and each.first < work.start]
        found = [each for each in others if each.num_alike(text.tokens) >= work.start]
        return min(found, key=lambda each: each.first).copy(text.tokens, work.start) if found else rows


def _num_equal(one: List[int], other: List[int]) -> int:
    """Count the tokens at the beginning that two lists have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))
