"""The program and the cache of rank 0 where a model is divided among ranks; and the loop in which the others follow it.

To the engine they are a program and a pool like any others. Every step, and everything that changes or reads rows, is a
command to the other ranks, in the same order; each carries it out on its own share of the matrices and the heads.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from tokenmill.cache.pool import ROWS, LayerStates, Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.errors import RankLost
from tokenmill.model.decoder import Decoder
from tokenmill.model.description import DecoderDescription
from tokenmill.parallel.channel import Message
from tokenmill.parallel.follower import Follower
from tokenmill.parallel.team import Team
from tokenmill.program.forward import ModelParts, Output, Program
from tokenmill.program.handed import COMMAND, NUMBER, HandedAdapters, HandsOn, TakenAdapters
from tokenmill.program.mixer_shares import Cut, cache_of_rank, share_of
from tokenmill.weights.adapters.adapter import Adapter


class OfModel:
    """The commands about one of the models that the ranks of a team have. number: of the model, 0 for the first."""

    def __init__(self, team: Team, number: int = 0) -> None:
        self.team, self._number, self._next = team, number, itertools.count(number + 1)

    def next_model(self) -> "OfModel":
        """Give the commands about the model that the ranks load next."""
        return OfModel(self.team, next(self._next))

    @property
    def is_first(self) -> bool:
        """Tell whether the team ends with this model."""
        return not self._number

    def tell(self, name: str, facts: Any = None, tensors: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        """Send a command to every other rank; see Team."""
        self.team.tell(name, [self._number, facts], tensors)


class RankedProgram(Program, HandsOn):
    """A program that has every rank compute each step; rank 0's own program gives the logits."""

    def __init__(self, program: Program, model: OfModel) -> None:
        self._program, self.model, self._team = program, model, model.team
        self._handed = HandedAdapters(partial(_ask, model))
        if model.is_first:
            self._team.take_apart(COMMAND)  # adapters are loaded beside steps
        self.num_weight_bytes, self.num_matrix_bytes = program.num_weight_bytes, program.num_matrix_bytes

    @property
    def build_id(self) -> str:
        """Name the build of one process: ranks compute the same bits, so the same rows may be shared."""
        return self._program.build_id

    def run(self, step: Step) -> Output:
        """Have every rank compute the step. After an error the ranks do not agree any more, so the group ends."""
        given = None if step.given_TD is None else [{"given": step.given_TD}] * (self._team.size - 1)
        self.model.tell("run", _told(step), given)
        try:
            return self._program.run(step)
        except Exception as error:
            raise self._team.failed(error) from error

    @property
    def decoder(self) -> Decoder:
        """The modules of rank 0's share."""
        own: Any = self._program  # program eager, the only one with such ranks
        decoder: Decoder = own.decoder
        return decoder

    def hand_on(self, adapter: Adapter | None) -> None:
        self._handed.hand_on(adapter)

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        self._team.on_loss = call

    def close(self) -> None:
        if self.model.is_first:
            self._team.close()

    def follow(self) -> None:
        """Do nothing: this is the rank that others follow."""

    @property
    def pids(self) -> list[int]:
        """List the processes of the ranks that this rank has started."""
        return self._team.pids


def _ask(model: OfModel, facts: dict[str, Any], tensors: Mapping[str, Tensor]) -> list[Any]:
    model.tell(COMMAND, facts, [tensors] * (model.team.size - 1))
    return [message.facts for message in model.team.collect(COMMAND)]


def _told(step: Step) -> dict[str, Any]:
    """Write a step as JSON. Tokens that are still on their way from the device are waited for."""
    return {
        "token_ids": step.token_ids_T.tolist() if step.fed_R is not None else list(step.token_ids),
        "positions": list(step.positions),
        "slots": list(step.slots),
        "spans": [
            [*span[:4], span.num_logits, list(span.blocks), span.state, list(span.saves), _number(span.adapter)]
            for span in step.spans
        ],
        "rows": None if step.rows is None else list(step.rows),
        "num_rows": step.num_rows,
        "keeps_hidden": step.keeps_hidden,
    }


def _number(adapter: Adapter | None) -> int | None:
    return None if adapter is None else adapter.prepared[NUMBER]


def _step(told: Mapping[str, Any], pool: Pool, device: torch.device, adapters: TakenAdapters) -> Step:
    size, spans = pool.spec.block_size, []
    for first, count, start, base, num_logits, blocks, state, saves, number in told["spans"]:
        end = start + count
        slots_L = pool.slots_of(blocks[: -(-end // size)], end) if base is None else None
        saved, adapter = tuple(map(tuple, saves)), adapters.find(number)
        spans.append(Span(first, count, start, base, slots_L, num_logits, blocks, state, saved, adapter))
    ints = told["token_ids"], told["positions"], told["slots"]
    return Step(*ints, spans, told["rows"], told["num_rows"], device, keeps_hidden=told["keeps_hidden"])


class RankedPool(Pool):
    """The pool of rank 0, which has its own heads; to the outside, a pool of all heads. spec: of all heads."""

    def __init__(self, spec: CacheSpec, decoder: DecoderDescription, device: torch.device, model: OfModel) -> None:
        team = model.team
        super().__init__(cache_of_rank(spec, decoder, 0, team.size), device)
        self._model, self._team, self.spec = model, team, spec
        self._whole = Pool(spec, torch.device("meta"))  # for the shapes of all heads
        self._cuts: list[dict[str, Cut]] = [{} for _ in range(team.size)]  # of each rank, by the names of tensors
        mixers = [mixer for layer in decoder.layers for mixer in layer.mixers]
        for number, (mixer, kept) in enumerate(zip(mixers, self._whole.layers, strict=True)):
            names = [f"{number}.{kind}" for kind in kept.kinds]
            for rank, found in enumerate(self._cuts):
                cuts = share_of(mixer, rank, team.size).cuts
                found.update(zip(names, cuts if isinstance(kept, LayerStates) else [*cuts] * len(names), strict=True))

    def block_bytes(self, block: int, kind: int = ROWS) -> list[Any]:
        entries = self._block(block, kind).values()
        return [each.contiguous().view(-1).view(torch.uint8).numpy() for each in entries]

    def is_finite(self, block: int, kind: int) -> bool:
        return all(bool(each.isfinite().all()) for each in self._block(block, kind).values())

    def _block(self, block: int, kind: int) -> dict[str, Tensor]:
        return self.read(self.slots_of([block], self.spec.block_size, kind), kind)

    def split(self, path: Path, stored: Tensor, kind: int = ROWS) -> dict[str, Tensor]:
        return self._whole.split(path, stored, kind)

    def converted(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._whole.converted(rows)

    def check_rows(
        self, path: Path, rows: Mapping[str, Tensor], count: int, num_states: int = 0, convert: bool = False
    ) -> None:
        self._whole.check_rows(path, rows, count, num_states, convert)

    def read(self, slots: Tensor, kind: int = ROWS) -> dict[str, Tensor]:
        """Read the entries of all ranks."""
        self._model.tell("read", kind, [{"slots": slots.cpu()}] * (self._team.size - 1))
        parts = [super().read(slots, kind), *(message.tensors for message in self._team.collect("entries"))]
        return {name: self._joined(name, [part[name] for part in parts]) for name in parts[0]}

    def write(self, slots: Tensor, rows: Mapping[str, Tensor], kind: int = ROWS) -> None:
        told = [{"slots": slots.cpu(), **self._of_rank(rows, rank)} for rank in range(1, self._team.size)]
        self._model.tell("write", kind, told)
        super().write(slots, self._of_rank(rows, 0), kind)

    def copy_block(self, kind: int, source: int, target: int) -> None:
        self._model.tell("copy", [kind, source, target])
        super().copy_block(kind, source, target)

    def _of_rank(self, rows: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
        """Pick the part of each tensor that a rank has."""
        found = {}
        for name, tensor in rows.items():
            dim, ranges = self._cuts[rank][name]
            found[name] = torch.cat([tensor.narrow(dim, each.start, len(each)) for each in ranges], dim)
        return found

    def _joined(self, name: str, parts: list[Tensor]) -> Tensor:
        """Join the parts of all ranks; several may have the same channels of a state."""
        cuts, shape = [of_rank[name] for of_rank in self._cuts], list(parts[0].shape)
        shape[cuts[0].dim] = max(cut.ranges[-1].stop for cut in cuts)
        whole = parts[0].new_empty(shape)
        for part, (dim, ranges) in zip(parts, cuts, strict=True):
            for own, of_part in zip(ranges, torch.split(part, list(map(len, ranges)), dim), strict=True):
                whole.narrow(dim, own.start, len(own)).copy_(of_part)
        return whole


def follow(
    follower: Follower,
    parts: ModelParts,
    program: Program,
    load_beside: Callable[[Mapping[str, Any]], tuple[Program, Pool]],
) -> NoReturn:
    """Carry out the commands of rank 0 for ever: the process ends with it. load_beside: loads a layer beside the model,
    of which later commands may be.
    """
    models = [(program, parts.pool)]
    adapters = TakenAdapters(program, parts.config.program, lambda adapter: None)
    device = parts.weights.device
    while True:
        message = follower.next()
        try:
            if message.name == "load":
                models.append(load_beside(message.facts))
                follower.send("ready")
                continue
            number, facts = message.facts
            running, pool = models[number]
            if message.name == "run":
                step = _step(facts, pool, device, adapters)
                step.given_TD = message.tensors["given"].to(device) if message.tensors else None
                running.run(step)
            elif message.name == COMMAND:
                adapters.forget(facts)  # here, behind the steps that name them
                threading.Thread(target=_take, args=(follower, adapters, facts, message.tensors), daemon=True).start()
            elif message.name == "copy":
                pool.copy_block(*facts)
            else:
                _entries(follower, pool, Message(message.name, facts, message.tensors), device)
        except RankLost:
            follower.wait_for_end()
        except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 shows it)
            follower.fail(error)


def _take(follower: Follower, adapters: TakenAdapters, facts: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Take an adapter while steps go on, which name it when rank 0 has the answers of all ranks."""
    follower.send(COMMAND, adapters.take(facts, tensors))


def _entries(follower: Follower, pool: Pool, message: Message, device: torch.device) -> None:
    rows = dict(message.tensors)
    slots = rows.pop("slots").to(device)
    if message.name == "read":
        follower.send("entries", None, pool.read(slots, message.facts))
    else:
        assert message.name == "write", f"rank 0 does not say {message.name}"
        pool.write(slots, rows, message.facts)
