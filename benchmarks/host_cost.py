"""The cost of the loop itself per step: everything but the model, which is replaced by a table lookup.

    python benchmarks/host_cost.py

One sequence decodes with a mock program that returns ready logits, so what is timed is proposing, planning, staging,
sampling, verifying, committing and detokenising. Prompts are shorter than a block, so the prefix cache finds nothing;
entering blocks into it is part of the cost. Medians over repetitions; the issue's bound is 100 µs at one sequence.
"""

import platform
import statistics
import time

import torch

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec, RowsSpec
from tokenmill.cache.step import Step
from tokenmill.engine.core import Core
from tokenmill.engine.engine import Engine
from tokenmill.hub.names import locate
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.measure.recorder import record
from tokenmill.model.config import ModelConfig
from tokenmill.program.forward import Output
from tokenmill.program.runner import Runner
from tokenmill.program.torch_specs import EagerSpec
from tokenmill.quant.schemes import find_scheme
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.settings.engine_config import ResolvedConfig
from tokenmill.settings.recommended import NOTHING
from tokenmill.speculate.proposer import NoProposer, ProposerContext
from tokenmill.speculate.speculation import Speculation
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import open_checkpoint

VOCABULARY, LENGTH, NEW, REPEATS = 49152, 2048, 400, 7


class MockProgram:
    """Returns a row of a ready table; reads and writes no cache."""

    has_threads = False

    def __init__(self) -> None:
        self.table_RV = torch.zeros(64, VOCABULARY)
        self.table_RV[torch.arange(64), torch.arange(64) + 1000] = 1.0
        self.turn = 0

    def close(self) -> None:
        """See Program."""

    def run(self, step: Step) -> Output:
        self.turn = (self.turn + 1) % 32
        return Output(self.table_RV[self.turn : self.turn + step.num_rows])


def mock_engine(tokenizer: Tokenizer | None, num_sequences: int, block_size: int) -> Engine:
    tokens = num_sequences * LENGTH
    config = ResolvedConfig(
        max_length=LENGTH,
        block_size=block_size,
        cache_tokens=tokens,
        max_sequences=num_sequences,
        device="cpu",
        dtype="float32",
        async_scheduling="off",
        speculate="off",
    )
    model = ModelConfig("mock", VOCABULARY, 8, 1, 1, 1, 8, 8, LENGTH)
    spec = CacheSpec((RowsSpec(1, 8),), "float32", "dense", block_size, tokens // block_size)
    device = torch.device("cpu")
    program, pool = MockProgram(), Pool(spec, device)
    runner = Runner(program, pool, device)  # type: ignore[arg-type]
    resolved = ResolvedModel(config, config, model, spec, "mock", "", EagerSpec, {}, find_scheme("dense"))
    loaded = LoadedModel(resolved, tokenizer, {}, {}, NOTHING, program, pool, runner, "mock")  # type: ignore[arg-type]
    scheduler = Scheduler(
        Memory([RowBlocks(BlockAllocator(spec.num_blocks, block_size))]), num_sequences, config.max_step_tokens
    )
    facts = ProposerContext(finds_drafts=False)
    speculation = Speculation(NoProposer(facts), config.num_draft_tokens, config.max_step_tokens, VOCABULARY, facts)
    return Engine(Core(loaded, scheduler, speculation))


def microseconds_per_step(engine: Engine, num_sequences: int, **sampling: object) -> float:
    """Median over repetitions of the mean step of one run."""
    prompts = [[1, 2, 3, 4 + i] for i in range(num_sequences)]
    figures = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        engine.generate(prompts, max_new_tokens=NEW, ignore_eos=True, **sampling)
        figures.append((time.perf_counter() - started) / NEW * 1e6)
    return statistics.median(figures)


def recording_cost() -> float:
    """Microseconds per step that the recorder of benchmarks and profiles adds; both in turn, medians."""
    engine = mock_engine(None, 1, LENGTH)
    plain, recorded = [], []
    for _ in range(REPEATS):
        plain.append(microseconds_per_step(engine, 1))
        with record(engine):
            recorded.append(microseconds_per_step(engine, 1))
    return statistics.median(recorded) - statistics.median(plain)


def main() -> None:
    torch.set_num_threads(1)
    tokenizer = open_checkpoint(locate("smollm2-135m")).tokenizer()
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print("argmax over the vocabulary alone costs", end=" ")
    row = torch.randn(1, VOCABULARY)
    timer = time.perf_counter()
    for _ in range(200):
        row.argmax(-1).tolist()
    print(f"{(time.perf_counter() - timer) / 200 * 1e6:.0f} µs and is included below")
    print(f"{'sequences':>9} {'block':>6} {'text':>5} {'sampling':>9} {'µs per step':>12}")
    for num_sequences, block_size, with_text, sampling in [
        (1, LENGTH, False, {}),
        (1, LENGTH, True, {}),
        (1, 16, True, {}),
        (1, LENGTH, True, {"temperature": 0.8, "top_k": 40}),
        (8, 16, True, {}),
        (32, 16, True, {}),
    ]:
        engine = mock_engine(tokenizer if with_text else None, num_sequences, block_size)
        cost = microseconds_per_step(engine, num_sequences, **sampling)
        kind = "top-k" if sampling else "greedy"
        print(f"{num_sequences:>9} {block_size:>6} {'yes' if with_text else 'no':>5} {kind:>9} {cost:>12.0f}")
    print(f"what recording a step adds: {recording_cost():.1f} µs")


if __name__ == "__main__":
    main()
