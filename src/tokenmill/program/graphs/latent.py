"""Latent attention, as launches of kernels: one row of a token is key and value of all heads."""

from typing import Any

import torch
import triton
from torch import Tensor

from tokenmill.kernels.triton.arithmetic import INTERPRETED
from tokenmill.kernels.triton.attention import merge
from tokenmill.kernels.triton.latent import attend_latent
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.rope import RotaryTable
from tokenmill.program.graphs.matrices import TRITON, GraphMatrix, NormOf
from tokenmill.program.graphs.rows import StepRows
from tokenmill.program.graphs.spec import SPLIT

HEADS_TOGETHER = 16
"""Heads of one program, at most: the rows of a tile of queries. Each program reads all rows of its split."""

POSITIONS = 16
"""Positions that a program reads at a time: 16 KB of latent vectors of 512 numbers, the width of most models."""

WARPS = 8
"""Warps of a program: 16 heads of 512 sums of float32 take 32 registers of each thread."""


def heads_of(num_heads: int) -> int:
    """Choose how many heads a program has, the same in each: 16 of 128, 10 of 20."""
    return next(count for count in range(HEADS_TOGETHER, 0, -1) if num_heads % count == 0)


class GraphLatent:
    """The module's matrices and the kernel between them. out: the last matrix."""

    def __init__(self, block: LatentBlock, module: Any, table: RotaryTable | None, block_size: int) -> None:
        self.block, self.table, self.block_size = block, table, block_size
        self.down = GraphMatrix.of(module.down)
        self.q_up = None if block.q_up is None else GraphMatrix.of(module.q_up, block.q_up.multipliers)
        self.keys = GraphMatrix.of_experts(list(module.keys), block.key.multipliers, False)
        self.values = GraphMatrix.of_experts(list(module.values), block.value.multipliers, False)
        self.out = GraphMatrix.of(module.out, block.out.multipliers)
        self.q_norm = NormOf.of(block.q_norm, module.q_norm)
        norm = NormOf.of(block.kv_norm, module.kv_norm)
        assert norm is not None, "each block has one"
        self.norm, self.group = norm, heads_of(block.num_heads)
        self.width, self.end_width = (
            max(16, triton.next_power_of_2(size)) for size in (block.latent_dim, block.rope_dim)
        )

    def __call__(self, x_BD: Tensor, norm: NormOf | None, cached: tuple[Tensor, ...], rows: StepRows) -> Tensor:
        """Write the new row into the cache; return what each head reads of the values, [B, N · V]."""
        block, count, heads = self.block, len(x_BD), self.block.num_heads
        down = self.down(x_BD, x_BD.new_empty((count, self.down.num_outputs)), norm)
        q, row = torch.split(down, list(block.down.parts), dim=1)
        if self.q_up is not None:
            q = self.q_up(q, x_BD.new_empty((count, heads * block.query_dim)), self.q_norm)
        q_BNF = q.view(count, heads, block.query_dim)
        q_BNL = x_BD.new_empty((count, heads, block.latent_dim))
        self.keys(q_BNF[..., : block.plain_dim], q_BNL)
        read_BNL = rows.results(q, heads * block.latent_dim).view_as(q_BNL)
        for which, own in rows.turns():
            self._attend(q_BNL[which], q[which], row[which], cached, own, read_BNL[which])
        out_BNV = x_BD.new_empty((count, heads, self.values.num_outputs))
        return self.values(read_BNL, out_BNV).flatten(1)

    def _attend(
        self, q_BNL: Tensor, q: Tensor, row: Tensor, cached: tuple[Tensor, ...], rows: StepRows, out_BNL: Tensor
    ) -> None:
        block, (count, heads, _), splits = self.block, q_BNL.shape, rows.num_splits
        of_splits = rows.of_splits(heads, block.latent_dim) if splits > 1 else [row] * 3
        cos, sin = (q, q) if self.table is None else (self.table.cos_PH, self.table.sin_PH)
        grid = count, heads // self.group
        shared = {
            "NUM_SPLITS": splits, "SPLIT": SPLIT, "HEADS": max(16, triton.next_power_of_2(self.group)),
            "WIDTH": self.width, "WINDOW": block.shape.window or 0, "T": TRITON[q.dtype], "INTERPRETED": INTERPRETED,
        }  # fmt: skip
        attend_latent[(*grid, splits)](
            q_BNL, q, row, *(cached * 2)[:2], rows.tables_BM, rows.positions_B, cos, sin, self.norm.weight, out_BNL,
            *of_splits, q_BNL.stride(0), q.stride(0), row.stride(0), rows.tables_BM.stride(0), out_BNL.stride(0),
            cos.stride(0), self.norm.eps, block.shape.scale, GROUP=self.group, LATENT_DIM=block.latent_dim,
            PLAIN_DIM=block.plain_dim, END_DIM=block.rope_dim, ROPE_DIM=0 if self.table is None else cos.shape[1],
            UNIT_OFFSET=self.norm.unit_offset, BLOCK=self.block_size, POSITIONS=POSITIONS, END_WIDTH=self.end_width,
            INT8=len(cached) > 1, num_warps=WARPS, **shared,
        )  # fmt: skip
        if splits > 1:
            merge[grid](
                rows.positions_B, row, out_BNL, *of_splits, out_BNL.stride(0), NUM_HEADS=heads,
                NUM_KV_HEADS=grid[1], HEAD_DIM=block.latent_dim, SINKS=False, **shared,
            )  # fmt: skip
