"""The controller drafts where its own measurements say that it pays, whatever the clock says."""

import pytest

from tests.empty import check_empty
from tests.marks import needs_native
from tests.tiny_models import prompt
from tokenmill import load
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence, Work
from tokenmill.speculate.controller import Controller, Judged
from tokenmill.speculate.estimates import MatchChances, PassCosts
from tokenmill.speculate.proposer import ProposerContext
from tokenmill.speculate.suffix import Guess


class Scripted:
    """A clock by which a pass takes what a function of its number of tokens says."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        return self.now

    def run(self, controller, sequences, follows, limit=15):
        """One step: propose, take the time, accept what `follows` says; the number of drafts."""
        drafts = controller.propose(sequences, limit, {})
        plan, accepted = Plan(), []
        for sequence in sequences:
            own = drafts.get(sequence.id, [])
            if UNKNOWN in own:
                own = [follows(sequence.tokens, len(sequence.tokens) + i) for i in range(len(own))]
            tokens = []
            for place in range(len(own) + 1):
                tokens.append(follows(sequence.tokens, len(sequence.tokens) + place))
                if place == len(own) or own[place] != tokens[-1]:
                    break
            plan.work.append(Work(sequence, len(sequence.tokens) - 1, 1 + len(own), 1 + len(own), tuple(own)))
            accepted.append(tokens)
        self.now += self.seconds(sum(work.count for work in plan.work))
        for sequence, tokens in zip(sequences, accepted, strict=True):
            sequence.tokens += tokens
            sequence.kept.num_computed = len(sequence.tokens) - 1
        controller.learn(plan, accepted)
        return max((len(work.drafts) for work in plan.work), default=0)


def decoding(tokens, number=1):
    return Sequence(number, list(tokens), len(tokens), 10**6, kept=Kept(len(tokens) - 1))


def repeats(tokens, place):
    return place % 10


@pytest.mark.parametrize("several", [False, True])
def test_what_repeats_is_drafted(several):
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    controller, sequence = Controller(ProposerContext(several), clock), decoding([i % 10 for i in range(30)])
    assert [clock.run(controller, [sequence], repeats) for _ in range(20)][-5:] == [15] * 5


def test_what_costs_as_much_as_it_saves_is_not_drafted():
    clock = Scripted(float)
    controller, sequence = Controller(ProposerContext(False), clock), decoding([i % 10 for i in range(30)])
    counts = [clock.run(controller, [sequence], repeats) for _ in range(60)]
    assert sum(counts[-20:]) == 0


def test_guesses_that_are_wrong_are_not_tried_for_long():
    clock = Scripted(lambda count: 1.0 + 0.1 * count)
    controller, sequence = Controller(ProposerContext(False), clock), decoding([1, 2, 3, 4, 5])

    def lies(tokens, place):
        return (1, 2, 100 + place)[place % 3]  # after 1, 2 comes each time something new

    counts = [clock.run(controller, [sequence], lies) for _ in range(300)]
    assert sum(map(bool, counts[-60:])) == 0


def test_it_goes_on_again_when_guesses_become_right():
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    controller, sequence = Controller(ProposerContext(False), clock), decoding([1, 2, 3, 4, 5])

    def turns(tokens, place):
        return (1, 2, 100 + place)[place % 3] if place < 300 else place % 10

    while len(sequence.tokens) < 300:
        clock.run(controller, [sequence], turns)
    counts = [clock.run(controller, [sequence], turns) for _ in range(60)]
    assert min(counts[-10:]) > 5


def test_the_sequence_with_the_better_guesses_gets_the_drafts():
    clock = Scripted(lambda count: 1.0 + 0.2 * max(count - 6, 0))
    controller = Controller(ProposerContext(False), clock)
    good, bad = decoding([i % 10 for i in range(30)]), decoding([1, 2, 3, 4, 5], number=2)

    def follows(tokens, place):
        return repeats(tokens, place) if tokens is good.tokens else (1, 2, 100 + place)[place % 3]

    for _ in range(100):
        clock.run(controller, [good, bad], follows)
    drafts = controller.propose([good, bad], 15, {})
    assert len(drafts.get(good.id, ())) >= 4 > len(drafts.get(bad.id, ()))


class Model:
    """A draft model that takes a time for each token, and is right as often as it is told."""

    has_caught_up = is_behind = False

    def __init__(self, clock, seconds, follows, is_right):
        self.clock, self.seconds, self.follows, self.is_right, self.calls = clock, seconds, follows, is_right, 0

    def continuations(self, sequences, limit):
        self.calls += 1
        self.clock.now += self.seconds * limit
        return {
            each.id: [
                self.follows(each.tokens, len(each.tokens) + i) + (not self.is_right(len(each.tokens) + i))
                for i in range(limit)
            ]
            for each in sequences
        }


def new(tokens, place):
    """Nothing repeats."""
    return 1000 + place


@pytest.mark.parametrize(
    ("seconds", "right", "pays"),
    [
        (0.1, lambda p: True, True),
        (0.1, lambda p: p % 3, True),
        (0.9, lambda p: p % 3, False),
        (0.1, lambda p: 0, False),
    ],
    ids=["cheap and right", "cheap and often right", "as slow as the text", "never right"],
)
def test_a_draft_model_is_asked_where_it_pays(seconds, right, pays):
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    model = Model(clock, seconds, new, right)
    controller, sequence = Controller(ProposerContext(False, model), clock), decoding([1, 2, 3])
    for _ in range(300):
        clock.run(controller, [sequence], new)
    before = model.calls
    for _ in range(60):
        clock.run(controller, [sequence], new)
    assert model.calls - before > 50 if pays else model.calls - before <= 1


def test_a_draft_model_that_becomes_right_is_found_out():
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    model = Model(clock, 0.1, new, lambda place: place > 400)
    controller, sequence = Controller(ProposerContext(False, model), clock), decoding([1, 2, 3])
    while len(sequence.tokens) < 4000:
        clock.run(controller, [sequence], new)
    before = model.calls
    for _ in range(20):
        clock.run(controller, [sequence], new)
    assert model.calls - before > 15


def test_matches_are_taken_before_a_slower_draft_model():
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    model = Model(clock, 0.3, repeats, lambda place: True)
    controller, sequence = Controller(ProposerContext(False, model), clock), decoding([i % 10 for i in range(30)])
    for _ in range(50):
        clock.run(controller, [sequence], repeats)
    before = model.calls
    assert [clock.run(controller, [sequence], repeats) for _ in range(5)] == [15] * 5
    assert model.calls == before


def test_costs_follow_the_machine_and_keep_their_ratios():
    costs = PassCosts()
    for speed in (1.0, 1.8, 1.0) * 40:
        costs.learn(1, False, speed)
        costs.learn(4, False, 1.5 * speed)
    assert costs.of(4, False) / costs.of(1, False) == pytest.approx(1.5, rel=0.1)


def test_chances_fall_along_a_guess():
    chances = MatchChances().along(decoding([1]), 2, 6)
    assert chances == sorted(chances, reverse=True) and 0 < chances[-1] < chances[0] < 1


def test_each_text_has_chances_of_its_own():
    chances, copying, prose = MatchChances(), decoding([1]), decoding([1], number=2)
    for _ in range(30):
        chances.learn(copying, 3, [5, 6], [5, 6])
        chances.learn(prose, 3, [5, 6], [7])
    assert chances.along(copying, 3, 1)[0] > 0.9 and chances.along(prose, 3, 1)[0] < 0.1
    assert 0.2 < chances.along(decoding([1], number=3), 3, 1)[0] < 0.8


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", [{}, {"max_sequences": 4, "block_size": 4}], ids=["alone", "together"])
def test_the_text_is_that_of_no_proposer(shape, sampling, llama):
    how = {"dtype": "float32", "program": "native", **shape}
    prompts = [prompt(5) * 4, prompt(9, seed=1) * 2, prompt(3, seed=2)]
    plain, engine = load(llama, **how, speculate="off"), load(llama, **how, speculate="adaptive")
    settings = {"max_new_tokens": 40, "ignore_eos": True, **sampling}
    for _ in range(3):
        ours, theirs = engine.generate(prompts, **settings), plain.generate(prompts, **settings)
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    check_empty(engine.core)


def test_a_draft_model_that_is_behind_is_asked_in_every_step():
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    model = Model(clock, 0.1, new, lambda place: True)
    controller, sequence = Controller(ProposerContext(False, model), clock), decoding([1, 2, 3])
    model.has_caught_up = model.is_behind = True
    right, model.continuations = model.continuations, lambda texts, limit: right(texts, limit) and {}
    while not model.calls:
        clock.run(controller, [sequence], new)
    for _ in range(5):
        clock.run(controller, [sequence], new)
    assert model.calls >= 5
    model.has_caught_up = model.is_behind = False
    model.continuations = right
    for _ in range(60):
        clock.run(controller, [sequence], new)
    assert model.calls > 50


class Costs:
    """Passes of 1 s for one token, and of as much more for each further one as is told."""

    def __init__(self, each, first=1.0, is_old=False):
        self.each, self.first, self.old = each, first, is_old

    def seconds(self, count, several):
        return self.first + self.each * (count - 1)

    def is_old(self, count, several):
        return self.old


class Along:
    """The same chances for every text."""

    def __init__(self, *chances):
        self.chances = chances

    def along(self, sequence, *_):
        return list(self.chances)


def test_the_draft_model_writes_as_much_as_pays():
    """One text: 1.9 tokens in 1.2 s, 2.7 in 1.4 s, 2.75 in 1.6 s, of which the draft model takes 0.1 s for each."""
    controller = Controller(ProposerContext(False, draft=object()))
    controller._costs, controller._texts = Costs(0.1), Along(0.9, 0.8, 0.05)
    controller._model_costs.learn(1, 0.1)
    assert controller._of_model([decoding([1])], 3) == (pytest.approx(2.7 / 1.4), {1: 2}, True)
    assert controller._of_model([decoding([1])], 1) == (pytest.approx(1.9 / 1.2), {1: 1}, True)
    assert controller._of_model([decoding([1])], 0) == (0.0, {}, False)
    controller._texts = Along(0.0, 0.8, 0.05)
    assert controller._of_model([decoding([1])], 3)[1] == {1: 0}


def with_guesses(each, *guesses):
    """A controller whose guesses for sequences 1, 2, … have these chances, and tokens from 10, 20, … on."""
    controller = Controller(ProposerContext(False))
    controller._costs = Costs(each)
    texts = [decoding([1], number) for number in range(1, 1 + len(guesses))]
    controller._matches = Chances(dict(zip(texts, guesses, strict=True)))
    controller._judged = {
        text.id: Judged(text, Guess([10 * text.id + i for i in range(len(along))], 3, False), [])
        for text, along in zip(texts, guesses, strict=True)
    }
    return controller


class Chances:
    """Those of each text, by itself."""

    def __init__(self, by_text):
        self.by_text = by_text

    def along(self, text, matched, count):
        return list(self.by_text[text][:count])


def test_guesses_are_taken_as_long_as_they_pay():
    """One text, 0.5 s for each draft: 1.9 tokens in 1.5 s, 2.7 in 2 s, 2.75 in 2.5 s."""
    assert with_guesses(0.5, [0.9, 0.8, 0.05])._of_matches(1) == (pytest.approx(2.7 / 2), {1: 2}, False)
    assert with_guesses(0.0, [0.9, 0.8, 0.05])._of_matches(1) == (pytest.approx(2.75), {1: 3}, False)
    assert with_guesses(0.5, [])._of_matches(1) == (0.0, {}, False)


def test_the_likeliest_guesses_of_all_texts_are_taken():
    """Two texts, 1.5 s without a draft: 2.95 tokens in 2 s, 3.85 in 2.5 s, 4.4 in 3 s."""
    controller = with_guesses(0.5, [0.95, 0.5], [0.9, 0.55])
    choice = controller._of_matches(2)
    assert choice == (pytest.approx(3.85 / 2.5), {1: 1, 2: 1}, False)
    texts = [each.sequence for each in controller._judged.values()]
    assert controller._made(texts, choice) == {1: [10], 2: [20]}


def test_forced_tokens_widen_a_pass_and_say_nothing_about_guesses():
    controller, seen = Controller(ProposerContext(False)), []
    controller._costs, text = Costs(0.5), decoding([1, 2, 3, 4] * 4)
    controller._costs.seconds = lambda num_tokens, several: seen.append(num_tokens) or 1.0
    drafts = controller.propose([text], 5, {text.id: [1, 2]})
    assert drafts == {text.id: [1, 2, 3, 4, 1]} and min(seen) == 3  # the text's own and the two that are certain
    learned = []
    controller._matches.learn = lambda *told: learned.append(told[1:])
    controller._costs = PassCosts()
    controller.learn(Plan([decoded(text, drafts[text.id])]), [[1, 2, 3, 9]])
    assert learned == [(14, [3, 4, 1], [3, 9])]  # twelve tokens and two were alike


def test_behind_forced_tokens_that_a_guess_does_not_have_nothing_is_guessed():
    controller, text = Controller(ProposerContext(False)), decoding([1, 2, 3, 4] * 4)
    assert controller.propose([text], 5, {text.id: [1, 7]}) == {}
    controller._matches.learn = lambda *told: learned.append(told[2:])
    learned = []
    controller.learn(Plan([decoded(text, [1, 7])]), [[1, 7, 3]])
    assert learned == [([], [3])]


def decoded(text, drafts):
    return Work(text, len(text.tokens) - 1, 1 + len(drafts), 1 + len(drafts), tuple(drafts))


@pytest.mark.parametrize(
    ("limit", "first", "wanted"),
    [(15, 0.001, 4), (4, 0.001, 4), (3, 0.001, 3), (15, 0.01, 1), (15, 0.02, 0), (15, 0.0, 0)],
)
def test_several_steps_are_as_many_as_fit_into_a_call(limit, first, wanted):
    """At most 5 steps, 25 ms, and what is left; a time that is not known counts as the whole call."""
    controller, text = Controller(ProposerContext(True)), decoding([1, 2, 3])
    controller._costs = Costs(0.0, first)
    assert controller.propose([text], limit, {}) == ({1: [UNKNOWN] * wanted} if wanted else {})


def test_nothing_is_drafted_where_a_pass_without_drafts_is_due():
    controller, text = Controller(ProposerContext(False)), decoding([i % 10 for i in range(30)])
    controller._costs = Costs(0.0)
    assert len(controller.propose([text], 5, {})[1]) > 0
    controller._costs = Costs(0.0, is_old=True)
    assert controller.propose([text], 5, {}) == {}


def test_a_draft_model_that_does_not_pay_is_asked_after_64_steps_and_then_after_twice_as_many():
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    model = Model(clock, 0.1, new, lambda place: False)
    controller = Controller(ProposerContext(False, model), clock)
    text = decoding([1, 2, 3])
    gaps, since = [], 0
    for _ in range(1500):
        before = model.calls
        clock.run(controller, [text], new)
        since += 1
        if model.calls > before:
            gaps.append(since)
            since = 0
    late = [gap for gap in gaps if gap > 10]
    assert late[:4] == [64, 128, 256, 512]


def test_a_draft_model_that_has_nothing_to_say_of_a_text_is_asked_for_one_token_at_times():
    """As one whose context is shorter than the text."""
    clock = Scripted(lambda count: 1.0 + 0.05 * count)
    model = Model(clock, 0.1, new, lambda place: True)
    limits = []
    model.continuations = lambda texts, limit: limits.append(limit) or {}
    controller, text = Controller(ProposerContext(False, model), clock), decoding([1, 2, 3])
    for _ in range(500):
        clock.run(controller, [text], new)
    assert 3 <= len(limits) <= 6 and set(limits[1:]) == {1}


class Learns:
    """Notes what it is taught."""

    def __init__(self):
        self.taught = []

    def learn(self, sequence, num_drafted, num_accepted):
        self.taught.append((sequence.id, num_drafted, num_accepted))


@pytest.mark.parametrize("by_model", [True, False])
def test_the_draft_model_is_judged_by_its_own_drafts_alone(by_model):
    controller, texts = (
        Controller(ProposerContext(False, draft=object())),
        [decoding([1, 2], number) for number in (1, 2, 3)],
    )
    controller._texts, controller._by_model = Learns(), by_model
    drafts = [(5, 6), (), (5,)]
    work = [Work(text, 1, 1 + len(own), 1 + len(own), own) for text, own in zip(texts, drafts, strict=True)]
    controller.learn(Plan(work), [[5, 7], [9], []])
    assert controller._texts.taught == ([(1, 2, 1)] if by_model else [])
