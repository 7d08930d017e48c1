"""Speculation as the loop sees it: limits, what is counted, and a proposer that fails."""

import logging

import pytest

from tokenmill import load
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence, Work
from tokenmill.speculate.proposer import Proposer, ProposerContext
from tokenmill.speculate.speculation import DraftStats, Speculation, described

PROMPT = [5, 6, 7, 8]


class Says(Proposer):
    """Proposes the same for every sequence; raises for those whose ids are in `bad`, or for a batch with one."""

    def __init__(self, tokens, bad=()):
        self.tokens, self.bad, self.asked = tokens, bad, []

    def propose(self, sequences, limit, forced):
        self.asked.append([each.id for each in sequences])
        if any(each.id in self.bad for each in sequences):
            raise ZeroDivisionError("no such draft")
        return {each.id: list(self.tokens) for each in sequences}


def speculation(proposer, num_draft_tokens=4, max_step_tokens=64):
    return Speculation(proposer, num_draft_tokens, max_step_tokens, vocab_size=100)


def sequences(count):
    return [Sequence(number, [1, 2, 3], 2, 30, kept=Kept(2)) for number in range(1, count + 1)]


def test_no_more_drafts_than_the_limit_and_the_budget():
    assert speculation(Says(range(9))).drafts(sequences(1)) == {1: [0, 1, 2, 3]}
    assert speculation(Says(range(9)), max_step_tokens=6).drafts(sequences(2)) == {1: [0, 1], 2: [0, 1]}
    assert speculation(Says(range(9)), max_step_tokens=2).drafts(sequences(2)) == {1: [], 2: []}


@pytest.mark.parametrize("wrong", [100, -7, 10**12])
def test_drafts_end_before_what_is_no_token(wrong):
    assert speculation(Says([5, wrong, 6])).drafts(sequences(1)) == {1: [5]}


def test_several_steps_are_left_as_they_are():
    assert speculation(Says([UNKNOWN] * 9)).drafts(sequences(1)) == {1: [UNKNOWN] * 4}


def test_one_sequence_that_fails_goes_on_without_and_it_is_said_once(caplog):
    proposer = Says([5, 6], bad={2})
    ours, three = speculation(proposer), sequences(3)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert ours.drafts(three) == {1: [5, 6], 3: [5, 6]}
    assert caplog.messages == ["proposer Says failed, ZeroDivisionError: no such draft; without it: 1 text"]
    assert proposer.asked[-1] == [1, 3]
    proposer.tokens = [UNKNOWN]
    assert ours.drafts(three) == {1: [], 3: []}  # several steps in one call are for all or none


def test_an_interrupt_is_no_failure():
    class Interrupted(Proposer):
        def propose(self, sequences, limit, forced):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        speculation(Interrupted()).drafts(sequences(1))


@pytest.mark.parametrize("where", ["propose", "learn"])
def test_a_proposer_that_fails_changes_no_text(where, llama, caplog):
    engine = load(llama, dtype="float32", speculate="suffix")
    wanted = engine.generate(PROMPT, max_new_tokens=12).tokens

    def fail(*_):
        raise IndexError("gone")

    setattr(engine.core.speculation.proposer, where, fail)
    assert engine.generate(PROMPT, max_new_tokens=12).tokens == wanted
    assert len(caplog.messages) == 1


def test_a_text_whose_end_fails_takes_no_drafts_from_the_others(caplog):
    class Ends(Says):
        def ended(self, sequence):
            raise ValueError("no room")

    ours, two = speculation(Ends([5, 6])), sequences(2)
    two[0].finish_reason = "stop"
    ours.learn(Plan(work=[Work(each, 2, 1, 1) for each in two]), [[3], [3]])
    assert ours.drafts(two[1:]) == {2: [5, 6]} and ours.drafts(two[:1]) == {}
    assert caplog.messages == ["proposer Ends failed, ValueError: no room; without it: 1 text"]


def test_what_is_counted(llama):
    engine = load(llama, dtype="float32", speculate="off")
    wanted = engine.generate(PROMPT, max_new_tokens=12, ignore_eos=True).tokens
    speculation = engine.core.loop.speculation = Speculation(Says([]), 3, 64, 1000)

    class Half(Proposer):
        """Two right drafts, and a wrong one."""

        def propose(self, sequences, limit, forced):
            done = len(sequences[0].tokens) - len(PROMPT) if sequences else 0
            return {each.id: [*wanted[done : done + 2], wanted[(done + 2) % 12] ^ 1] for each in sequences}

    speculation.proposer = Half()
    assert engine.generate(PROMPT, max_new_tokens=12, ignore_eos=True).tokens == wanted
    stats = speculation.stats
    assert stats.histogram == {2: 3, 1: 1}
    assert (stats.num_drafted, stats.num_accepted) == (10, 7)
    assert stats.mean_accepted == 7 / 4
    assert stats.drafting_s > 0 and stats.verifying_s > 0


def test_nothing_drafted_is_no_division_by_zero():
    assert DraftStats().mean_accepted == 0


def test_what_came_of_drafts_in_columns_and_in_words():
    stats = DraftStats(drafting_s=1.5, verifying_s=0.25)
    stats.count(4, 2)
    stats.count(3, 0)
    stats.count(2000, 2)
    assert stats.columns == {
        "drafted": 2007, "accepted": 4, "mean_accepted": 4 / 3, "accepted_histogram": {0: 1, 2: 2},
        "drafting_s": 1.5, "verifying_s": 0.25,
    }  # fmt: skip
    assert list(stats.columns["accepted_histogram"]) == [0, 2]
    assert described(stats.columns) == (
        "4 of 2,007 drafts accepted, 1.3 in a pass (0: 1, 2: 2); 1.50 s to draft, 0.25 s to verify"
    )


def decoded(sequence, drafts, done=2):
    return Work(sequence, done, 1 + len(drafts), 1 + len(drafts), tuple(drafts))


def test_times_and_counts_of_one_step():
    """Drafting takes 2 s, the pass 5 s. The second text has no drafts, and the third others than were guessed."""
    clock = iter([10.0, 12.0, 17.0])
    ours = Speculation(Says([5, 6]), 4, 64, 100, clock=lambda: next(clock))
    one, two, three = sequences(3)
    ours.proposer.propose = lambda asked, limit, forced: {1: [5, 6], 2: [], 3: [UNKNOWN]}
    assert ours.drafts([one, two, three]) == {1: [5, 6], 2: [], 3: [UNKNOWN]}
    ours.learn(Plan(work=[decoded(one, [5, 6]), decoded(two, []), decoded(three, [7, 8])]), [[5, 9], [3], [7, 8, 9]])
    assert (ours.stats.drafting_s, ours.stats.verifying_s) == (2.0, 5.0)
    assert (ours.stats.num_drafted, ours.stats.num_accepted, ours.stats.histogram) == (2, 1, {1: 1})
    ours.learn(Plan(work=[decoded(one, [5, 6])]), [[5, 9]])  # the clock is not asked: nothing was drafted for this
    assert ours.stats.num_drafted == 2


def test_the_end_of_a_text_is_told_unless_it_was_broken_off():
    ended = []
    ours, texts = speculation(Says([])), sequences(5)
    ours.proposer.ended = lambda sequence: ended.append(sequence.finish_reason)
    for sequence, reason in zip(texts, ("eos", "stop", "length", "cancelled", None), strict=True):
        sequence.finish_reason = reason
    ours.learn(Plan(work=[decoded(each, []) for each in texts]), [[3]] * 5)
    assert ended == ["eos", "stop", "length"]


def test_a_proposer_that_cannot_learn_is_left_alone(caplog):
    ours, two = speculation(Says([5])), sequences(2)

    def fail(*_):
        raise IndexError("gone")

    ours.proposer.learn = fail
    ours.learn(Plan(work=[decoded(each, []) for each in two]), [[3], [3]])
    assert ours.drafts(two) == {}
    assert caplog.messages == ["proposer Says failed, IndexError: gone; without it: 2 texts"]


class Closed:
    def __init__(self):
        self.times = 0

    def close(self):
        self.times += 1


def test_what_the_proposer_holds_is_closed():
    draft, store = Closed(), Closed()
    Speculation(Says([]), 4, 64, 100, ProposerContext(False, draft, store)).close()
    assert (draft.times, store.times) == (1, 1)
    Speculation(Says([]), 4, 64, 100, ProposerContext(False, None, store)).close()
    assert store.times == 2
    alone = speculation(Says([]))
    alone.close()
    assert alone.draft is None


def test_the_budget_of_a_step_is_shared_evenly():
    """64 tokens for 13 sequences are 4 each, of which one is the sequence's own."""
    ours = speculation(Says(range(9)), num_draft_tokens=9)
    assert {len(tokens) for tokens in ours.drafts(sequences(13)).values()} == {3}
    assert ours.drafts([]) == {}


def test_the_first_and_the_last_token_of_the_model():
    assert speculation(Says([0, 99, 100, 1])).drafts(sequences(1)) == {1: [0, 99]}
    assert speculation(Says([-2])).drafts(sequences(1)) == {1: []}
