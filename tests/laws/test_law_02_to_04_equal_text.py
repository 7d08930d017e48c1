"""Laws 2, 3 and 4: the text does not depend on chunks, blocks, kernels, neighbours, order of arrival or preemption.

Greedy and sampled, on tiny models of every family in float32. Logits of the tiny models are far apart compared with
rounding, so a difference here is a wrong row, not a tie.
"""

from itertools import product

import pytest
import torch

from tests.integrity import check_scheduler
from tests.marks import QUICK_FAMILIES, each
from tests.tiny_models import CONTEXT, FAMILY_NAMES, HYBRIDS, KINDS, TINY, UNLIKE, prompt, reference, save
from tokenmill import load
from tokenmill.errors import NoKernel
from tokenmill.model.description import describe
from tokenmill.registry import ATTEND

SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 11}}
PROMPTS = [prompt(length, seed=3) for length in (1, 5, 8, 13, 16, 17, 30, 41)]
NEW = 14


def cases():
    """Every family greedy, and sampled those that everything is tried with: the sampler sees no family."""
    always = {(family, "sampled") for family in QUICK_FAMILIES}
    always |= {(family, "greedy") for family in (*KINDS, *HYBRIDS, *UNLIKE)}
    return [
        pytest.param(pair, marks=() if pair in always else pytest.mark.long, id="-".join(pair))
        for pair in product(FAMILY_NAMES, SAMPLING)
    ]


@pytest.fixture(scope="module", params=cases())
def case(request):
    """A family, and how its tokens are drawn."""
    return request.param


@pytest.fixture(scope="module", autouse=True)
def one_thread_here(num_threads):
    """Two of them in a tiny model are mostly time to wake them."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def family(case, one_thread_here):
    """Those that everything is tried with are computed in two threads."""
    torch.set_num_threads(2 if case[0] in QUICK_FAMILIES else 1)
    yield case[0]
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def sampling(case):
    return SAMPLING[case[1]]


@pytest.fixture(scope="module")
def singles(family, sampling, models):
    """The reference of all laws: each prompt alone, in one piece, in one contiguous block."""
    engine = load(save(family, models), dtype="float32", max_step_tokens=64)
    return [engine.generate(p, max_new_tokens=NEW, **sampling).tokens for p in PROMPTS]


def batch(engine, prompts, sampling):
    done = engine.generate(prompts, max_new_tokens=NEW, **sampling)
    assert engine.core.scheduler.idle
    check_scheduler(engine.core.scheduler)
    assert engine.core.scheduler.allocator.num_free == engine.core.scheduler.allocator.num_blocks, "a block was leaked"
    return [d.tokens for d in done]


@pytest.mark.parametrize("budget", [1, pytest.param(2, marks=pytest.mark.long), 7])
def test_any_chunk_split(budget, family, sampling, singles, models):
    engine = load(save(family, models), dtype="float32", max_step_tokens=budget)
    assert [engine.generate(p, max_new_tokens=NEW, **sampling).tokens for p in PROMPTS] == singles


@pytest.mark.parametrize(("budget", "block_size"), [(512, None), (29, 4)])
def test_without_the_cache(budget, block_size, family, sampling, singles, models):
    path = save(family, models)
    engine = load(path, dtype="float32", cache=False, max_sequences=8, max_step_tokens=budget, block_size=block_size)
    assert batch(engine, PROMPTS, sampling) == singles


# Arrivals have blocks of 16, too.
@pytest.mark.parametrize("block_size", [1, 3, pytest.param(16, marks=pytest.mark.long), 128])
def test_any_block_size_in_a_batch_of_eight(block_size, family, sampling, singles, models):
    engine = load(save(family, models), dtype="float32", block_size=block_size, max_sequences=8)
    assert batch(engine, PROMPTS, sampling) == singles


@pytest.mark.parametrize(
    "order", [pytest.param([7, 6, 5, 4, 3, 2, 1, 0], marks=pytest.mark.long), [3, 0, 6, 1, 7, 4, 2, 5]]
)
def test_any_order_with_few_places_and_a_small_budget(order, family, sampling, singles, models):
    engine = load(save(family, models), dtype="float32", block_size=4, max_sequences=3, max_step_tokens=11)
    assert batch(engine, [PROMPTS[i] for i in order], sampling) == [singles[i] for i in order]


def test_forced_preemption(family, sampling, singles, models):
    engine = load(
        save(family, models), dtype="float32", block_size=4, max_sequences=8, cache_tokens=80, max_step_tokens=32
    )
    assert batch(engine, PROMPTS, sampling) == singles
    assert engine.core.scheduler.num_preemptions > 0


def test_a_warm_prefix_cache(family, sampling, singles, models):
    engine = load(save(family, models), dtype="float32", block_size=4, cache_tokens=512)
    first = [engine.generate(p, max_new_tokens=NEW, **sampling).tokens for p in PROMPTS]
    again = [engine.generate(p, max_new_tokens=NEW, **sampling).tokens for p in PROMPTS]
    assert first == again == singles


def test_arrivals_while_others_are_running(family, sampling, singles, models):
    engine = load(save(family, models), dtype="float32", block_size=16, max_sequences=4, max_step_tokens=9)
    streams = [(i, engine.stream(p, max_new_tokens=NEW, **sampling)) for i, p in enumerate(PROMPTS)]
    tokens: dict[int, tuple[int, ...]] = {i: () for i, _ in streams}
    live = streams[:1]
    while live:
        for entry in list(live):
            piece = next(entry[1], None)
            if piece is None:
                live.remove(entry)
            else:
                tokens[entry[0]] += piece.tokens
            later = [s for s in streams if s not in live and not tokens[s[0]]]
            live += later[:1]
    assert [tokens[i] for i in range(len(PROMPTS))] == singles


def test_drafts_of_the_suffix_proposer(family, sampling, singles, models):
    engine = load(
        save(family, models), dtype="float32", speculate="suffix", block_size=8, max_sequences=4, num_draft_tokens=3
    )
    assert batch(engine, PROMPTS, sampling) == singles


@pytest.mark.parametrize("kernel", ATTEND)
@pytest.mark.parametrize("name", [name for name, (kind, _) in TINY.items() if kind in KINDS])
def test_every_kernel_equals_gather(name, kernel, models, engine_of):
    """Bound: assert_close's defaults for float32; the kernels order their sums differently."""
    path = save(name, models)
    tokens = prompt(33)
    gather = engine_of(path, dtype="float32", kernel="gather", max_length=CONTEXT)
    expected = gather.logits(tokens)
    is_plain = all(shape.is_plain for shape in describe(gather.model_config).attention_shapes)
    for block_size in (128, 3):
        try:
            engine = load(
                path, dtype="float32", kernel=kernel, block_size=block_size, max_length=CONTEXT, max_step_tokens=10
            )
        except NoKernel as refusal:
            assert kernel == "padded" or (kernel == "rows" and (block_size == 3 or not is_plain)), refusal
            continue
        torch.testing.assert_close(engine.logits(tokens), expected)


@pytest.mark.parametrize("family", each(FAMILY_NAMES))
def test_no_cache_gives_the_same_text(family, models):
    """Law 2 against the plainest reference there is: recompute everything for every token."""
    engine = load(save(family, models), dtype="float32")
    tokens = list(PROMPTS[3])
    for _ in range(6):
        with torch.no_grad():
            tokens.append(int(reference(family)(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert list(engine.generate(PROMPTS[3], max_new_tokens=6).tokens) == tokens[len(PROMPTS[3]) :]
