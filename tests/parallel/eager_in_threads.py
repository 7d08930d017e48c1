"""The ranks of a divided model as threads of one process, for what does not depend on processes."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from tests.tiny_models import TINY, build
from tokenmill.cache.pool import Pool
from tokenmill.kernels.attend.kernel import choose
from tokenmill.kernels.threads import torch_threads
from tokenmill.loader.load_model import resolve_checkpoint
from tokenmill.model.description import describe
from tokenmill.parallel.collectives import Group
from tokenmill.program.adapted import prepare
from tokenmill.program.eager import Eager
from tokenmill.program.forward import ModelParts
from tokenmill.program.handed import read_written, written
from tokenmill.program.mixer_shares import cache_of_rank
from tokenmill.program.parts import Opened
from tokenmill.program.runner import Runner
from tokenmill.schedule.keeps import Table
from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.adapters.model_weights import ModelWeights
from tokenmill.weights.adapters.read import open_adapter
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.source import WeightSource

CPU = torch.device("cpu")


def at_once(functions):
    """What they return, each called in a thread of its own: they wait for each other."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(function) for function in functions]]


def groups(size):
    """The process groups of so many ranks."""
    store = dist.HashStore()
    return at_once([lambda rank=rank: Group(store, rank, size, CPU, "127.0.0.1") for rank in range(size)])


class Threads:
    """A model divided among so many threads, or of one."""

    def __init__(self, path, size, **settings):
        self.checkpoint = open_checkpoint(path)
        config = EngineConfig(program="eager", tensor_parallel=size, threads=1, **settings)
        self.resolved = resolve_checkpoint(self.checkpoint, config)
        self.groups = groups(size) if size > 1 else [None]
        with torch_threads(1):
            self.runners = at_once([lambda rank=rank: self._load(rank, size) for rank in range(size)])
        self._adapters = [{None: None} for _ in self.runners]

    def load_adapter(self, name, path):
        """As rank 0 reads it, and hands it to the others."""
        resolved = self.resolved
        base = ModelWeights(self.checkpoint.path, resolved.model, resolved.scheme)
        adapter = open_adapter(path, name, resolved.model, getattr(torch, resolved.config.dtype), base)
        for runner, own in zip(self.runners, self._adapters, strict=True):
            own[name] = adapter if own is self._adapters[0] else read_written(*written(adapter))
            prepare(runner.program, own[name])

    def _load(self, rank, size):
        resolved = self.resolved
        config, model = resolved.config, resolved.model
        spec = cache_of_rank(resolved.cache, describe(model), rank, size)
        source = WeightSource(self.checkpoint, model, resolved.scheme, getattr(torch, config.dtype), CPU)
        shapes = describe(model).attention_shapes
        _, kernel = choose(config.kernel, resolved.cache, CPU, config.max_length, shapes)
        pool = Pool(spec, CPU)
        parts = ModelParts(source, pool, kernel, config, Opened(group=self.groups[rank]))
        return Runner(Eager(parts), pool, CPU)

    def logits(self, *prompts, step=9, adapters=()):
        """The logits of every rank for every token of texts that are computed together, so many tokens at a time.
        adapters: a name for each text.
        """
        names = adapters or [None] * len(prompts)
        with torch_threads(1):
            return at_once(
                [
                    lambda runner=runner, own=own: self._run(runner, prompts, step, [own[name] for name in names])
                    for runner, own in zip(self.runners, self._adapters, strict=True)
                ]
            )

    def _run(self, runner, prompts, step, adapters):
        size, length = self.resolved.config.block_size, max(map(len, prompts))
        num_blocks, found = -(-length // size), []
        sequences = [Sequence(number, list(prompt), len(prompt), 10**9) for number, prompt in enumerate(prompts)]
        for sequence, adapter in zip(sequences, adapters, strict=True):
            sequence.kept.adapter = adapter
            blocks = list(range(sequence.id * num_blocks, (sequence.id + 1) * num_blocks))
            sequence.kept.tables = [Table(blocks), Table([sequence.id])]
        for first in range(0, length, step):
            counts = [(each, min(step, len(each.tokens) - first)) for each in sequences]
            for sequence, count in counts:
                sequence.kept.tables[1].ends = [first + count]
            plan = Plan([Work(each, first, count, count) for each, count in counts if count > 0])
            found.append(runner.run(plan)[1])
        return torch.cat(found)


def save_with_three_kv_heads(name, folder):
    """A tiny model like the one of that name, but with three kv heads: two ranks have two and one of them."""
    path = folder / f"{name}-three"
    if not path.exists():
        kind, numbers = TINY[name]
        heads = {"num_attention_heads": 6, "num_key_value_heads": 3} if "num_key_value_heads" in numbers else {}
        build(kind, numbers | heads).save_pretrained(path)
    return path
