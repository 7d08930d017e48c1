"""States in slots: a layer keeps tensors of a whole text, which each token changes.

A text has one state after its computed tokens, in a slot that all such layers share. States that may be needed again
stand in other slots: at the end of a block of tokens, so that a later text with the same beginning finds it
(snapshots.py), and before and after each draft, until it is known how many are accepted. A slot that others hold or can
find is not written: the step writes another.

Steps end where a state shall be found: near the end of the prompt; where the rows end that the text shares with
earlier ones, as the third text that begins so will find a state there (the admission of Marconi, Pan et al., MLSys
2025); wherever a step ends in the midst of a prompt; and at each block of an answer.
"""

from collections.abc import Callable

from tokenmill.schedule.keeps import Keeps, Kept, Table, Undo
from tokenmill.schedule.snapshots import SnapshotSlots


class StateSlots:
    """The states of all layers that keep a state."""

    at = 1
    needs_all = False

    def __init__(self, allocator: SnapshotSlots, stops_at_blocks: bool = True) -> None:
        """Keep the slots. stops_at_blocks: steps end at the end of a block of tokens, whose state can be found."""
        self.allocator, self._stops = allocator, stops_at_blocks

    def reads(self, num_tokens: int) -> range:
        count = self.allocator.count(num_tokens)
        return range(max(count - 1, 0), count)

    def load_range(self, first: int, num_tokens: int) -> tuple[int, int]:
        return 0, 1

    def begin(self, kept: Kept, first_row: int, num_tokens: int) -> None:
        kept.tables[self.at].ends = [num_tokens] * bool(kept.tables[self.at].blocks)
        self.allocator.text_begun()

    def max_blocks(self, num_tokens: int, num_fed: int = 1) -> int:
        return 2  # the state that a step begins with, and the one that it writes

    def num_missing(self, table: Table, first: int, num_tokens: int, num_fed: int) -> int:
        return 0 if table.blocks and self.allocator.references[table.blocks[-1]] == 1 else 1

    def max_fed(self, kept: Kept, count: int, budget: int) -> int:
        if not self._stops:
            return budget
        start, size = kept.num_computed, self.allocator.block_size
        if count == 1:  # drafts go to the end of a block
            return min(budget, size - start % size)
        end = start + min(count, budget)
        if stops := [stop for stop in (kept.num_shared, kept.prompt_end) if start < stop < end]:
            return min(stops) - start
        last = end // size * size  # the last end of a block in reach
        return last - start if count > budget and last > start else budget

    def max_drafts(self) -> int | None:
        return max(len(self.allocator.unnamed()) - 1, 0)

    def reserve(
        self, kept: Kept, count: int, undo: Undo, take: Callable[[Keeps], int | None]
    ) -> list[tuple[int, int]] | None:
        table, allocator, start = kept.tables[self.at], self.allocator, kept.num_computed
        old = table.blocks[-1] if table.blocks else None
        stays = any(undo) or (self._stops and start % allocator.block_size == 0 and bool(allocator.num_free))
        if old is not None and not stays and allocator.references[old] == 1:
            allocator.unpublish(old)  # it is about to change
            table.ends[-1] = start + count
            return []
        if (new := take(self)) is None:
            return None
        if old is not None and not stays:
            allocator.release(table.blocks.pop())
            table.ends.pop()
        table.blocks += [*allocator.take_unnamed(undo.num_drafts), new]
        table.ends += range(start + count - undo.num_drafts, start + count + 1)
        return [] if old is None or stays else [(old, new)]

    def computed(self, kept: Kept, num_tokens: int) -> None:
        kept.tables[self.at].ends[-1] = num_tokens

    def can_keep(self, kept: Kept, num_tokens: int) -> int:
        return max((end for end in kept.tables[self.at].ends if end <= num_tokens), default=0)

    def cut(self, kept: Kept, num_tokens: int) -> None:
        table = kept.tables[self.at]
        table.ends = [end for end in table.ends if end <= num_tokens and num_tokens]
        self.allocator.cut(table.blocks, len(table.ends))

    def give_back(self, kept: Kept) -> None:
        table = kept.tables[self.at]
        for block in table.blocks[:-1]:
            self.allocator.release(block)
        table.blocks, table.ends = table.blocks[-1:], table.ends[-1:]

    def publish(self, kept: Kept, index: int, has_ended: bool) -> int | None:
        table, end = kept.tables[self.at], (index + 1) * self.allocator.block_size
        if end in table.ends:
            slot = table.blocks[table.ends.index(end)]
            self.allocator.take(slot, kept.block_hashes, index, kept.num_shared, kept.prompt_end)
        is_end = has_ended or end in (kept.num_shared, kept.prompt_end)
        return self.allocator.begin_store(kept.block_hashes[index], is_end)

    def num_saved(self, kept: Kept, limit: int) -> int:
        return kept.num_saved if kept.num_saved <= limit else 0
