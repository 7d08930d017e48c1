"""Proposer suffix: guesses the tokens that followed the longest suffix of the text when it occurred before.

It needs no second model, and guesses well where a text copies: quotes, edits of code, tables, its own words again
(SuffixDecoding, arXiv 2411.04975; prompt lookup, Saxena 2023, is the same with suffixes of a fixed length).
"""

from collections.abc import Callable
from collections.abc import Sequence as List
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tokenmill.schedule.sequence import Sequence
from tokenmill.speculate.proposer import Forced, Proposer, ProposerContext

SHORTEST = 2  # tokens that a suffix must have to be guessed from
TAIL = 4  # last tokens by which an edit of a sequence is noticed
CERTAIN = 16  # with a match of so many tokens in the sequence itself, the store is not asked
LEAD = 64  # tokens before a stored text that are stored with it
COUNTED = 16  # a new token counts as an occurrence of this many suffixes of the text, the longest ones


class SuffixAutomaton:
    """All substrings of a list of tokens, in at most twice as many states (Blumer et al. 1985).

    A state stands for the substrings that end at the same places. length: of the longest of these substrings. link: the
    state of the longest suffix that also ends elsewhere. A token is appended in constant time on average.
    """

    def __init__(self) -> None:
        self._last, self.tokens = 0, list[int]()
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._count = [-1], [0], [0]

    def append(self, token: int) -> None:
        link, length, following = self._link, self._length, self._next
        new = self._add({}, length[self._last] + 1, 0, 0)
        state = self._last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = link[state]
        if state >= 0:
            found = following[state][token]
            if length[found] > length[state] + 1:
                split = self._add(dict(following[found]), length[state] + 1, link[found], self._count[found])
                while state >= 0 and following[state].get(token) == found:
                    following[state][token] = split
                    state = link[state]
                link[found] = found = split
            link[new] = found
        self.tokens.append(token)
        self._last = new
        for _ in range(COUNTED):
            if new <= 0:
                break
            self._count[new] += 1
            new = link[new]

    @property
    def matched(self) -> int:
        """Find the length of the longest suffix that occurred before."""
        return self._length[self._link[self._last]]

    def guess(self, limit: int) -> list[int]:
        """Guess the tokens after the longest suffix that occurred before, the most frequent token each time.

        Where the earlier occurrence runs into the end of the text, the text is taken to repeat itself.
        """
        link, following, count = self._link, self._next, self._count
        state, guessed = link[self._last], list[int]()
        while len(guessed) < limit and self._length[state] >= SHORTEST:
            if len(following[state]) == 1:  # most states by far
                ((token, state),) = following[state].items()
                guessed.append(token)
            elif following[state]:
                token, state = max(following[state].items(), key=lambda step: (count[step[1]], step[1]))
                guessed.append(token)
            else:
                state = link[state]
        return guessed

    def _add(self, following: dict[int, int], length: int, link: int, count: int) -> int:
        self._next.append(following)
        self._length.append(length)
        self._link.append(link)
        self._count.append(count)
        return len(self._next) - 1


Useful = Callable[[Sequence, int, int], int]  # takes the sequence, the length of the match, and the limit


class Guess(NamedTuple):
    """A guess. tokens: they may follow. matched: length of the suffix that was found, in another text if is_stored."""

    tokens: list[int]
    matched: int
    is_stored: bool = False


class Suffix(Proposer):
    """The proposer with an automaton for each sequence, which goes when the sequence does, and a store of earlier
    texts, if there is one.

    Texts of a tenant, with a salt, are neither stored nor compared with the store.
    """

    def __init__(self, facts: ProposerContext | None = None) -> None:
        self._automata: WeakKeyDictionary[Sequence, SuffixAutomaton] = WeakKeyDictionary()
        self._store = facts.store if facts is not None else None
        self._num_stored: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        decoding = [sequence for sequence in sequences if sequence.num_pending_tokens == 1]
        return {sequence.id: self.guess(sequence, limit).tokens for sequence in decoding}

    def guess(self, sequence: Sequence, limit: int, useful: Useful | None = None) -> Guess:
        """Guess what followed the longest suffix, in the text itself or, if an earlier text has a longer one, there.

        useful: how many tokens after such a match are worth guessing.
        """
        automaton, own_limit = self._automaton(sequence), limit
        if useful is not None and automaton.matched >= SHORTEST:
            own_limit = useful(sequence, automaton.matched, limit)
        own = Guess(automaton.guess(own_limit), automaton.matched)
        if self._store is None or sequence.kept.salt or own.matched >= CERTAIN:
            return own
        stored = Guess(*self._store.guess(sequence.tokens, limit), is_stored=True)
        return stored if stored.matched > own.matched else own

    def ended(self, sequence: Sequence) -> None:
        if self._store is None or sequence.kept.salt or sequence.score_from is not None:
            return
        # The part of a session's text since its last answer, with enough before it to be found.
        start = max(min(self._num_stored.get(sequence, 0), len(sequence.tokens)) - LEAD, 0)
        self._store.add(sequence.tokens[start:])
        self._num_stored[sequence] = len(sequence.tokens)

    def _automaton(self, sequence: Sequence) -> SuffixAutomaton:
        """Return the sequence's automaton, with all of its tokens entered."""
        # Taken out while it grows, so that an interrupt leaves no automaton that is half grown.
        automaton, tokens = self._automata.pop(sequence, None), sequence.tokens
        done = len(automaton.tokens) if automaton is not None else 0
        # A sequence that was rewound begins anew. An edit that leaves these few as they were only costs guesses.
        if automaton is None or automaton.tokens[-TAIL:] != tokens[max(done - TAIL, 0) : done]:
            automaton, done = SuffixAutomaton(), 0
        for token in tokens[done:]:
            automaton.append(token)
        self._automata[sequence] = automaton
        return automaton
