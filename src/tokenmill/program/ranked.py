"""The program and the cache of rank 0 where a model is divided among ranks; and the loop in which the others follow it.

To the engine they are a program and a pool like any others. Every step, and everything that changes or reads rows, is a
command to the other ranks, in the same order; each carries it out on its own share of the matrices and the heads.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from tokenmill.cache.pool import ROWS, Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.errors import RankLost
from tokenmill.parallel.channel import Message
from tokenmill.parallel.division import cache_of_rank, divide_heads
from tokenmill.parallel.follower import Follower
from tokenmill.parallel.team import Team
from tokenmill.program.forward import ModelParts, Output, Program


class RankedProgram(Program):
    """A program that has every rank compute each step; rank 0's own program gives the logits."""

    def __init__(self, program: Program, team: Team) -> None:
        self._program, self._team = program, team
        self.num_weight_bytes, self.num_matrix_bytes = program.num_weight_bytes, program.num_matrix_bytes

    @property
    def build_id(self) -> str:
        """Name the build of one process: ranks compute the same bits, so the same rows may be shared."""
        return self._program.build_id

    def run(self, step: Step) -> Output:
        """Have every rank compute the step. After an error the ranks do not agree any more, so the group ends."""
        self._team.tell("run", _told(step))
        try:
            return self._program.run(step)
        except Exception as error:
            raise self._team.failed(error) from error

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        self._team.on_loss = call

    def close(self) -> None:
        self._team.close()

    def follow(self) -> None:
        """Do nothing: this is the rank that others follow."""

    @property
    def pids(self) -> list[int]:
        """List the processes of the ranks that this rank has started."""
        return self._team.pids


def _told(step: Step) -> dict[str, Any]:
    """Write a step as JSON. Tokens that are still on their way from the device are waited for."""
    return {
        "token_ids": step.token_ids_T.tolist() if step.fed_R is not None else list(step.token_ids),
        "positions": list(step.positions),
        "slots": list(step.slots),
        "spans": [[*span[:4], span.num_logits, list(span.blocks)] for span in step.spans],
        "rows": None if step.rows is None else list(step.rows),
        "num_rows": step.num_rows,
    }


def _step(told: Mapping[str, Any], pool: Pool, device: torch.device) -> Step:
    size, spans = pool.spec.block_size, []
    for first, count, start, base, num_logits, blocks in told["spans"]:
        end = start + count
        slots_L = pool.slots_of(blocks[: -(-end // size)], end) if base is None else None
        spans.append(Span(first, count, start, base, slots_L, num_logits, blocks))
    ints = told["token_ids"], told["positions"], told["slots"]
    return Step(*ints, spans, told["rows"], told["num_rows"], device)


class RankedPool(Pool):
    """The pool of rank 0, which has its own heads; to the outside, a pool of all heads. spec: of all heads."""

    def __init__(self, spec: CacheSpec, device: torch.device, team: Team) -> None:
        super().__init__(cache_of_rank(spec, 0, team.size), device)
        self._team, self.spec = team, spec
        self._whole = Pool(spec, torch.device("meta"))  # for the shapes of all heads
        heads = divide_heads([rows.num_kv_heads for rows in spec.rows], team.size)
        self._heads = [[of_rank[number] for of_rank in heads] for number in range(len(spec.rows))]

    def block_bytes(self, block: int, kind: int = ROWS) -> list[Any]:
        first, size = block * self.spec.block_size, self.spec.block_size
        rows = self.read(torch.arange(first, first + size, device=self._offsets.device))
        return [each.contiguous().view(-1).view(torch.uint8).numpy() for each in rows.values()]

    def split(self, path: Path, stored: Tensor, kind: int = ROWS) -> dict[str, Tensor]:
        return self._whole.split(path, stored)

    def converted(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._whole.converted(rows)

    def check_rows(
        self, path: Path, rows: Mapping[str, Tensor], count: int, num_states: int = 0, convert: bool = False
    ) -> None:
        self._whole.check_rows(path, rows, count, num_states, convert)

    def read(self, slots: Tensor, kind: int = ROWS) -> dict[str, Tensor]:
        """Read the rows of all ranks. Ranks keep rows alone: layers with states are refused."""
        if kind != ROWS:
            return {}
        self._team.tell("read", None, [{"slots": slots.cpu()}] * (self._team.size - 1))
        parts = [super().read(slots), *(message.tensors for message in self._team.collect("rows"))]
        return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}

    def write(self, slots: Tensor, rows: Mapping[str, Tensor], kind: int = ROWS) -> None:
        told = [{"slots": slots.cpu(), **self._of_rank(rows, rank)} for rank in range(1, self._team.size)]
        self._team.tell("write", None, told)
        super().write(slots, self._of_rank(rows, 0))

    def copy_block(self, kind: int, source: int, target: int) -> None:
        self._team.tell("copy", [kind, source, target])
        super().copy_block(kind, source, target)

    def _of_rank(self, rows: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
        """Pick the heads of each layer's rows that a rank has."""
        found = {}
        for name, tensor in rows.items():
            own = self._heads[int(name.partition(".")[0])][rank]
            found[name] = tensor[:, own.start : own.stop]
        return found


def follow(follower: Follower, parts: ModelParts, program: Program) -> NoReturn:
    """Carry out the commands of rank 0 for ever: the process ends with it."""
    pool = parts.pool
    device = pool.layers[0].tensors[0].device
    while True:
        name, facts, tensors = follower.next()
        try:
            if name == "run":
                program.run(_step(facts, pool, device))
            elif name == "copy":
                pool.copy_block(*facts)
            else:
                _rows(follower, pool, Message(name, facts, tensors), device)
        except RankLost:
            follower.wait_for_end()
        except Exception as error:  # noqa: BLE001  (whatever it is, rank 0 shows it)
            follower.fail(error)


def _rows(follower: Follower, pool: Pool, message: Message, device: torch.device) -> None:
    rows = dict(message.tensors)
    slots = rows.pop("slots").to(device)
    if message.name == "read":
        follower.send("rows", None, pool.read(slots))
    else:
        assert message.name == "write", f"rank 0 does not say {message.name}"
        pool.write(slots, rows)
