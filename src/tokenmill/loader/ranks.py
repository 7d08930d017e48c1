"""The ranks among which a model is divided, as a load sees them: each load has one of the sides that stand here.

Without tensor parallelism a process is alone. The ranks of program native are on one machine and share memory. The
ranks of program eager may be anywhere: rank 0, whose engine goes on, and the others, whose load never returns, but
carries out the commands of rank 0 until that ends. Ranks join before weights are read.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from tokenmill.cache.lent_pool import LentPool
from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import ConfigError
from tokenmill.kernels.native_library import is_usable, library_digest
from tokenmill.kernels.threads import default_threads
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.memory.arena import Arena
from tokenmill.model.description import describe
from tokenmill.parallel.collectives import Group
from tokenmill.parallel.follower import Follower
from tokenmill.parallel.ranks import OtherRanks, Ranks, RanksBeside
from tokenmill.parallel.rendezvous import Meeting, meet_torchrun, start_ranks, torchrun_size
from tokenmill.parallel.team import Team
from tokenmill.program.forward import ModelParts, Program
from tokenmill.program.mixer_shares import cache_of_rank
from tokenmill.program.parts import Opened
from tokenmill.program.ranked import OfModel, RankedPool, RankedProgram, follow
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint

MODULE = "tokenmill.loader.eager_rank"  # the module of a process that rank 0 starts for program eager
NOT_COMPARED = (
    "model",
    "tokenizer",
    "prefix_dir",
    "prefix_limit",
    "suffix_dir",
    "suffix_limit",
    "draft_model",
    "adapter",
    "lora_modules",
    "threads",
)
"""Settings that may differ between ranks: names of files, which are compared by their content, and settings that rank 0
alone uses. Threads are compared as they are in the end."""
NOT_OF_RANKS: dict[str, Any] = {
    **dict.fromkeys(("prefix_dir", "suffix_dir", "draft_model", "num_draft_tokens", "adapter", "lora_modules")),
    "speculate": "off",
    "packed_cache": False,
}
"""Settings of rank 0 alone, with the values that the others have: they compute steps and decide nothing."""
LoadBeside = Callable[["Alone", Mapping[str, Any]], tuple[Program, Pool]]
_met: list[int] = []  # engines that have met under torchrun


class Alone:
    """The side of a load without other ranks. shared: the ranks that share memory, for program native."""

    def __init__(self, shared: Ranks | None = None) -> None:
        self.shared = shared or Ranks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Tell nobody of an error."""

    def device(self, found: torch.device) -> torch.device:
        """Find the device of this rank."""
        return found

    def join(self, resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device) -> Group | None:
        """Have the others load the same, or see to it that they do. They have as many blocks and slots of states as the
        cache of rank 0.
        """
        return None

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        """Allocate the cache of this rank. spec: of all ranks."""
        return Pool(spec, device)

    def ready(self, program: Program, parts: ModelParts, load_beside: LoadBeside) -> Program:
        """Return the program that the engine runs, once this rank has its weights. load_beside: loads a layer that
        rank 0 tells of, with another side.
        """
        return program

    def close(self) -> None:
        """End the other ranks."""


class WithPool(Alone):
    """A load that reads the cache of another model."""

    def __init__(self, lent: Pool) -> None:
        super().__init__()
        self._lent = lent

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        return self._lent


class InSharedMemory(Alone):
    """The side of every rank of program native. Rank 0 starts the others, and tells them what to load. told: more that
    they are told. lent: the cache of another model, where this one has none.
    """

    def __init__(
        self, checkpoint: Checkpoint, shared: Ranks, told: Mapping[str, Any] | None = None, lent: Pool | None = None
    ) -> None:
        super().__init__(shared)
        self._checkpoint, self._leads = checkpoint, not shared.rank.number
        self._told, self._lent = told or {}, lent

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End all ranks at an error; where a rank has ended, its loss is the reason, and is raised."""
        if error is None or not self._leads:
            return
        try:
            if isinstance(error, Exception):
                self.shared.check()
        finally:
            self.shared.end()

    def join(self, resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device) -> None:
        """Start the others, which compare the digests with their own."""
        if self._leads:
            self.shared.start({**_told_to_ranks(self._checkpoint, resolved, digests), **self._told})

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        """Map the whole cache, as each rank does."""
        if self._lent is not None:
            return self._lent
        return Pool(spec, device, partial(Arena, shared=self.shared.cache))


class _OneOfMany(Alone):
    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting = meeting

    def device(self, found: torch.device) -> torch.device:
        """Find the device: each rank of a machine has a GPU."""
        if found.type == "cuda" and found.index is None:
            return torch.device("cuda", self._meeting.local_rank)
        return found


class Leading(_OneOfMany):
    """The side of rank 0."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        self._team = Team(meeting)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the other ranks where the load fails."""
        if error is not None:
            self.close()

    def join(self, resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device) -> Group:
        self._decoder, cache = describe(resolved.model), resolved.cache
        return self._team.agree(facts_of(resolved, digests), [cache.num_blocks, cache.num_states], device)

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        return RankedPool(spec, self._decoder, device, OfModel(self._team))

    def ready(self, program: Program, parts: ModelParts, load_beside: LoadBeside) -> Program:
        """Wait for the other ranks."""
        self._team.await_ready()
        return RankedProgram(program, OfModel(self._team))

    def close(self) -> None:
        self._team.close()


class Following(_OneOfMany):
    """The side of any other rank. Ctrl-C is for rank 0 alone, where all of them belong to one terminal."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(meeting)
        self._follower = Follower(meeting)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Send an error to rank 0, which raises it."""
        if error is not None:
            self._follower.fail(error)

    def join(self, resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device) -> Group:
        (num_blocks, num_states), group = self._follower.agree(facts_of(resolved, digests), device)
        whole = replace(resolved.cache, num_blocks=num_blocks, num_states=num_states)
        self._cache = cache_of_rank(whole, describe(resolved.model), self._meeting.rank, self._meeting.size)
        return group

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        return Pool(self._cache, device)

    def ready(self, program: Program, parts: ModelParts, load_beside: LoadBeside) -> Program:
        """Follow rank 0; this does not return."""
        self._follower.send("ready")
        assert isinstance(parts.own, Opened) and parts.own.group is not None, "the ranks have joined"
        follow(self._follower, parts, program, partial(load_beside, FollowingBeside(parts)))


class LeadingBeside(Alone):
    """Rank 0's side of a layer beside the model of a team, which the other ranks load once rank 0 has it. number: of
    the layer among the team's models. told: what they are told of it beside its settings.
    """

    def __init__(self, target: RankedProgram, told: Mapping[str, Any]) -> None:
        super().__init__()
        self._target, self._told = target, {**told}
        self._model = target.model.next_model()

    def device(self, found: torch.device) -> torch.device:
        return self._target.decoder.embedding.weight.device

    def join(self, resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device) -> Group | None:
        self._decoder = describe(resolved.model)
        self._told |= {"settings": asdict(resolved.config) | NOT_OF_RANKS, **_sizes(resolved.cache)}
        return self._model.team.group

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        return RankedPool(spec, self._decoder, device, self._model)

    def ready(self, program: Program, parts: ModelParts, load_beside: LoadBeside) -> Program:
        self._model.team.tell("load", self._told)
        self._model.team.collect("ready")
        return RankedProgram(program, self._model)


class FollowingBeside(Alone):
    """Another rank's side of such a layer. parts: of its share of the model."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__()
        assert isinstance(parts.own, Opened) and parts.own.group is not None, "the ranks have joined"
        self._device, self._group = parts.weights.device, parts.own.group

    def device(self, found: torch.device) -> torch.device:
        return self._device

    def join(self, resolved: ResolvedModel, digests: Mapping[str, str], device: torch.device) -> Group:
        self._cache = cache_of_rank(resolved.cache, describe(resolved.model), self._group.rank, self._group.size)
        return self._group

    def pool(self, spec: CacheSpec, device: torch.device) -> Pool:
        return Pool(self._cache, device)


def find_ranks(checkpoint: Checkpoint, resolved: ResolvedModel) -> Alone:
    """Meet the other ranks of a load, or prepare to start them; see Alone."""
    size, config = resolved.config.tensor_parallel, resolved.config
    if size == 1:
        return Alone()
    if torchrun_size() is not None:
        return _met_by_torchrun(resolved)
    if not checkpoint.path.exists():
        allowed = f"1, because {checkpoint.path} has no files that other processes could read"
        raise ConfigError("tensor_parallel", size, allowed)
    if resolved.program.shares_memory:
        return InSharedMemory(checkpoint, OtherRanks(size))
    task = {**asdict(resolved.given), "model": str(checkpoint.path.resolve()), "threads": config.threads}
    return Leading(start_ranks(size, MODULE, task))


def find_ranks_beside(
    checkpoint: Checkpoint, target: Program, told: Mapping[str, Any], lent: LentPool | None = None
) -> Alone:
    """Find the side of rank 0 for a layer of the model `target`, or for its assistant, which every rank loads. told:
    what the others are told of it. lent: the cache that it reads.
    """
    if isinstance(target, RankedProgram):
        assert lent is None, "assistants are refused there"
        return LeadingBeside(target, told)
    shared: Ranks = getattr(target, "ranks", Ranks())  # program native alone has others
    if shared.rank.count > 1:
        return InSharedMemory(checkpoint, RanksBeside(shared), told, lent)
    return Alone() if lent is None else WithPool(lent)


def _met_by_torchrun(resolved: ResolvedModel) -> Alone:
    size = resolved.config.tensor_parallel
    if resolved.program.shares_memory:
        allowed = f"eager under torchrun: {resolved.program_name} starts its ranks by itself, on this machine"
        raise ConfigError("program", resolved.given.program, allowed)
    if _met:
        raise ConfigError("tensor_parallel", size, "1: torchrun's other ranks serve the engine that was loaded before")
    meeting = meet_torchrun(size)
    _met.append(size)
    return Leading(meeting) if meeting.rank == 0 else Following(meeting)


def threads_of_machine(size: int) -> int:
    """Count the default threads of all ranks on this machine; under torchrun, as many as it gives each."""
    return default_threads() * (1 if torchrun_size() is None else size)


def versions() -> dict[str, str]:
    """Name the versions that must be equal on every rank."""
    library = library_digest() if is_usable() else "none"
    return {"tokenmill": __version__, "torch": str(torch.__version__), "native library": library}


def _told_to_ranks(checkpoint: Checkpoint, resolved: ResolvedModel, digests: Mapping[str, str]) -> dict[str, Any]:
    """Write down what the other ranks load, and what must be equal there: the model's files, and the versions."""
    packed = checkpoint if isinstance(checkpoint, PackedCheckpoint) else None
    return {
        "settings": asdict(resolved.config) | NOT_OF_RANKS,
        **_sizes(resolved.cache),
        "model": str(checkpoint.path),
        "packed": None if packed is None else str(packed.file),
        "fingerprint": dict(digests),
        "versions": versions(),
    }


def _sizes(cache: CacheSpec) -> dict[str, int]:
    """Count the blocks and states of a cache. Some states are for drafts, of which the other ranks know nothing."""
    return {"num_blocks": cache.num_blocks, "num_states": cache.num_states}


def facts_of(resolved: ResolvedModel, digests: Mapping[str, str]) -> dict[str, Any]:
    """List the facts that must be equal on every rank: they decide the bits, and the order of the exchanges."""
    settings = {name: value for name, value in asdict(resolved.given).items() if name not in NOT_COMPARED}
    return {
        "tokenmill's version": __version__,
        "torch's version": str(torch.__version__),
        **{f"the model's {part}": digest for part, digest in digests.items()},
        **settings,
        "threads": resolved.config.threads,
        "torch's instruction set": torch.backends.cpu.get_cpu_capability(),
    }
