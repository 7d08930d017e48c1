"""Prompt lookup: guesses the tokens that followed the last few tokens earlier, in the prompt or the output.

It needs no second model, and guesses well where an answer copies from its input (Saxena 2023, prompt-lookup-decoding).
"""

from collections.abc import Sequence as List

from tokenmill.schedule.sequence import Sequence

__all__ = ["PromptLookup"]

LONGEST, SHORTEST = 3, 2  # lengths of the n-grams that must repeat before a guess is made


class PromptLookup:
    """Keeps, for each sequence, the position after the latest occurrence of each n-gram of tokens."""

    def __init__(self) -> None:
        self._followed: dict[int, tuple[int, dict[tuple[int, ...], int]]] = {}

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """The continuation of the latest earlier n-gram that equals the last tokens, longest n-gram first."""
        # The tables of sequences that have ended are dropped.
        self._followed = {s.id: self._followed.get(s.id, (0, {})) for s in sequences}
        guesses = {}
        for sequence in sequences:
            if sequence.num_pending_tokens != 1:
                continue
            table = self._extend(sequence)
            for length in range(LONGEST, SHORTEST - 1, -1):
                place = table.get(tuple(sequence.tokens[-length:]))
                if place is not None:
                    guesses[sequence.id] = sequence.tokens[place : place + limit]
                    break
        return guesses

    def _extend(self, sequence: Sequence) -> dict[tuple[int, ...], int]:
        """Enter every n-gram that ends before the last token, so that only earlier ones are found."""
        done, table = self._followed[sequence.id]
        tokens = sequence.tokens
        if done > len(tokens) - 1:  # the sequence was rewound
            done, table = 0, {}
        for end in range(max(done, SHORTEST), len(tokens)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                table[tuple(tokens[end - length : end])] = end
        self._followed[sequence.id] = (len(tokens), table)
        return table
