"""Measure points on an engine: prefill and decode apart, every repetition kept until the medians are made.

Prefill is every step in which some sequence had no token of its own yet; decode is every later step with the whole
batch in it (when sequences have left, the rest is in the total only). A step is timed from the end of the one before,
so nothing falls between. Each sequence has other tokens in each repetition, and the end-of-sequence token ends nothing.
"""

import random
import time
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tokenmill.bench.points import Point
from tokenmill.engine.engine import Engine
from tokenmill.engine.outputs import Completion, hash_tokens
from tokenmill.measure.recorder import StepRecord, record
from tokenmill.speculate.speculation import DraftStats

MAX_PREFILL_CHUNK = 2048
WARM_TOKENS = 8


@dataclass(frozen=True)
class Sample:
    """One repetition; seconds.

    prefill_s: the time of prefill_tokens, the tokens of the point's own prompts, without the depth before them.
    decode_s: the time of decode_steps of the whole batch, each of several in one call counted, which gave
    decode_tokens. total_s: from the first step's begin to the last one's end. itl_s: gaps between tokens, of all
    sequences; see shared_gaps.
    """

    prefill_s: float
    prefill_tokens: int
    decode_s: float
    decode_steps: int
    decode_tokens: int
    total_s: float
    ttft_s: tuple[float, ...]
    itl_s: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def hash(self) -> str:
        """The hash over the tokens of all sequences in order; of one sequence it is its completion's hash."""
        return hash_tokens(self.tokens)


@dataclass
class Measured:
    """All repetitions of a point. probes_gb_s: the machine's read bandwidth beside each.

    repeats: whether the prompts of the first one, run again, gave the same tokens.
    """

    point: Point
    warmup_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    probes_gb_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    repeats: bool = True


def make_prompts(point: Point, vocab_size: int, repetition: int = 0) -> list[list[int]]:
    """Draw random ids, other ones for each sequence and repetition, and the same whenever it is called."""
    rng = random.Random(f"{repetition} {point}")  # noqa: S311  (no secret)
    return [[rng.randrange(vocab_size) for _ in range(point.num_fed)] for _ in range(point.batch)]


def measure_point(
    engine: Engine,
    point: Point,
    repetitions: int,
    *,
    probe: Callable[[], float],
    before_each: Callable[[], object] = lambda: None,
    peak: Callable[[], int] = lambda: 0,
    advance: Callable[[], object] = lambda: None,
) -> Measured:
    """Measure a point: a shorter run to warm up, then the repetitions, a probe beside each. `advance` is called after
    every run.

    After the last repetition the beginning of the first is run again, to see that its tokens are the same.
    """
    vocab_size, measured = engine.model_config.vocab_size, Measured(point)
    short = replace(point, new=min(point.new, WARM_TOKENS))
    measured.warmup_s = take_sample(engine, short, make_prompts(point, vocab_size, -1)).total_s
    advance()
    engine.core.speculation.stats = DraftStats()
    for number in range(repetitions):
        measured.probes_gb_s.append(probe())
        before_each()
        measured.samples.append(take_sample(engine, point, make_prompts(point, vocab_size, number)))
        measured.peak_bytes = max(measured.peak_bytes, peak())
        advance()
    stats = engine.core.speculation.stats
    again = take_sample(engine, short, make_prompts(point, vocab_size))
    engine.core.speculation.stats = stats
    advance()
    first, length, begin = measured.samples[0].tokens, max(point.new, 1), max(short.new, 1)
    measured.repeats = again.tokens == tuple(token for at, token in enumerate(first) if at % length < begin)
    return measured


def take_sample(
    engine: Engine, point: Point, prompts: List[List[int]], clock: Callable[[], float] = time.perf_counter
) -> Sample:
    """Generate once, recorded. RuntimeError if prompts were not computed, because something kept their rows."""
    with record(engine, clock) as recorder:
        done = engine.generate([list(p) for p in prompts], max_new_tokens=max(point.new, 1), ignore_eos=True)
    sample, claimed = sample_of(recorder.steps, done, point), point.batch * point.prompt
    if sample.prefill_tokens < claimed:
        raise RuntimeError(f"prefill fed {sample.prefill_tokens} of {claimed} tokens: its time measures something else")
    return sample


def sample_of(steps: List[StepRecord], done: List[Completion], point: Point) -> Sample:
    """Sort the steps into prefill and decode."""
    ends_s = [steps[0].begun_s, *(step.ended_s for step in steps)]
    prefill_s = decode_s = 0.0
    prefill_tokens = decode_steps = decode_tokens = fed = 0
    for step, before_s, end_s in zip(steps, ends_s, ends_s[1:], strict=False):
        if not step.is_decode:
            if fed >= point.depth * point.batch:
                prefill_s, prefill_tokens = prefill_s + end_s - before_s, prefill_tokens + step.num_tokens
            fed += step.num_tokens
        elif step.num_sequences == point.batch and step.num_new >= step.num_passes * point.batch:
            decode_s, decode_steps = decode_s + end_s - before_s, decode_steps + step.num_passes
            decode_tokens += step.num_new
    return Sample(
        prefill_s=prefill_s,
        prefill_tokens=prefill_tokens,
        decode_s=decode_s,
        decode_steps=decode_steps,
        decode_tokens=decode_tokens,
        total_s=ends_s[-1] - ends_s[0],
        ttft_s=tuple(completion.timing.ttft_s for completion in done),
        itl_s=tuple(gap for completion in done for gap in shared_gaps(completion.timing.itl_s)),
        tokens=tuple(token for completion in done for token in completion.tokens),
    )


def shared_gaps(gaps_s: List[float]) -> list[float]:
    """Share time among tokens that came together: of n gaps in which one is not 0, each gets the nth part."""
    ends = [at for at, gap in enumerate(gaps_s) if gap] + [len(gaps_s)]
    found = [0.0] * ends[0]
    for begin, end in pairwise(ends):
        found += [gaps_s[begin] / (end - begin)] * (end - begin)
    return found


def chunk_for(point: Point, usual: int) -> int:
    """Choose the tokens per step, such that a step ends where the depth ends and the measured prefill begins there."""
    if not point.prompt or not point.depth:
        return usual
    return -(-point.depth // -(-point.depth // MAX_PREFILL_CHUNK))
