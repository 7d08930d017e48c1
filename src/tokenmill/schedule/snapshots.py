"""The slots of states, and which of the states in them stay to be found: ints only.

A snapshot is the state at the end of a block of tokens, under the name of that block. One may be as large as the rows
of a thousand tokens, so slots are few. When one is needed, the snapshot goes that is worth least (hyperbolic caching,
Blankstein et al., USENIX ATC 2017): the tokens that a text would have to compute again without it, times the number of
texts that are expected to go on there, divided by the number of texts that have begun since it was last used. Without
it, texts go on from the snapshot before it, which makes the next one worth more: the snapshots of a text are thinned
out evenly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill.schedule.blocks import BlockAllocator

ELSEWHERE = 1 / 4
"""The texts that are expected to go on at a snapshot in the midst of a text, for each at its end: in the random
conversations of tests/schedule/test_snapshots.py, hits compute 4.8 % again with 1/4 and 1/2, 5.2 % with 1/8 and 7 %
with 1/32."""
MAX_RECOMPUTED = 8
"""At the end of a prompt or an answer, a snapshot goes to disk if a hit there would otherwise compute 1/8 of its tokens
again or more. A restart is rare, and a file is as large as the rows of a thousand tokens: with 1/20, the turns of a
short conversation write 100 MB each."""


@dataclass(slots=True)
class _Snapshot:
    """A state that can be found. end: the tokens before it. before: the slot of the snapshot before it, of the same
    text. stored_end: where the last snapshot at or before it stands that went to disk. used: when it was last found,
    counted in texts. num_hits: the texts that went on there, without the text whose tip it was. is_tip: nothing of that
    text stands after it, or the answer alone.
    """

    end: int
    before: int | None
    stored_end: int
    used: int = 0
    num_hits: int = 0
    is_tip: bool = False


class SnapshotSlots(BlockAllocator):
    """The allocator of the slots of states. A block of it is one slot; block_size counts the tokens between names.

    tokens_per_state: the tokens whose rows are as large as a state. is_reachable: says whether the rows of a block can
    be found, without which its snapshot is useless; None if they may lie on disk. num_spare: so many free slots stay
    without a snapshot, for the states of drafts.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        tokens_per_state: int = 1,
        is_reachable: Callable[[bytes], bool] | None = None,
        num_spare: int = 0,
    ) -> None:
        self._num_spare = num_spare
        self._tokens_per_state, self._is_reachable = tokens_per_state, is_reachable
        self._snapshots: dict[int, _Snapshot] = {}
        self._clock = 0
        super().__init__(num_blocks, block_size)

    def text_begun(self) -> None:
        """Count a text: what it does not use becomes older."""
        self._clock += 1

    def take(self, block: int, hashes: Sequence[bytes], index: int, num_shared: int, prompt_end: int) -> None:
        """Let the state in a slot be found at the end of block `index` of a text with these hashes. num_shared,
        prompt_end: see Kept.
        """
        self.publish(block, hashes[index])
        if (slot := self.find(hashes[index])) is None:
            return  # the slot has another name
        end = (index + 1) * self.block_size
        if (snapshot := self._snapshots.get(slot)) is None:
            snapshot = self._snapshots[slot] = self._after(hashes, index)
        snapshot.used = self._clock
        if end == num_shared and end != prompt_end:
            snapshot.num_hits = max(snapshot.num_hits, 2)  # two texts have gone different ways from here
        else:
            snapshot.is_tip = True
        before = snapshot.before
        while before is not None and (earlier := self._snapshots[before]).is_tip and earlier.end != prompt_end:
            earlier.is_tip, earlier.num_hits = False, 0  # the text itself has gone on there
            before = earlier.before

    def _after(self, hashes: Sequence[bytes], index: int) -> _Snapshot:
        """Make the record of a snapshot at the end of that block, with the last one before it."""
        end = (index + 1) * self.block_size
        found = (self.find(hashes[before]) for before in range(index - 1, -1, -1))
        before = next((slot for slot in found if slot is not None), None)
        return _Snapshot(end, before, 0 if before is None else self._snapshots[before].stored_end)

    def begin_store(self, digest: bytes, is_end: bool) -> int | None:
        """Find the slot of a snapshot that is to be written to disk; None if it is not worth its bytes there.

        is_end: a prompt or an answer ends there. Others are written where as many tokens lie between them that their
        rows are as large as the state.
        """
        if (slot := self.find(digest)) is None:
            return None
        snapshot = self._snapshots[slot]
        gap, far = snapshot.end - snapshot.stored_end, self._tokens_per_state
        if gap < max(min(far, snapshot.end // MAX_RECOMPUTED) if is_end else far, 1):
            return None
        snapshot.stored_end = snapshot.end
        return slot

    def share(self, block: int) -> None:
        super().share(block)
        if (snapshot := self._snapshots.get(block)) is not None:
            snapshot.used = self._clock
            snapshot.num_hits += 1

    def unpublish(self, block: int) -> None:
        super().unpublish(block)
        if (gone := self._snapshots.pop(block, None)) is not None:
            for snapshot in self._snapshots.values():
                if snapshot.before == block:
                    snapshot.before = gone.before

    def forget_names(self) -> None:
        super().forget_names()
        self._snapshots.clear()

    def clear(self) -> None:
        super().clear()
        self._snapshots.clear()

    def unnamed(self) -> list[int]:
        """List the free slots without a snapshot."""
        return [block for block in self._free if block not in self._digest_of]

    def take_unnamed(self, count: int) -> list[int]:
        """Take so many free slots without a snapshot, of which there must be enough."""
        taken = self.unnamed()[:count]
        assert len(taken) == count, "as many drafts as max_drafts allows"
        for block in taken:
            del self._free[block]
            self.references[block] = 1
        return taken

    def _next_free(self) -> int:
        unnamed = self.unnamed()
        if len(unnamed) > self._num_spare or len(unnamed) == len(self._free):
            return unnamed[0]
        return min((block for block in self._free if block in self._digest_of), key=self._worth)  # of equals the oldest

    def _worth(self, block: int) -> float:
        if self._is_reachable is not None and not self._is_reachable(self._digest_of[block]):
            return 0.0
        snapshot = self._snapshots[block]
        before = 0 if snapshot.before is None else self._snapshots[snapshot.before].end
        num_expected = snapshot.num_hits + (1 if snapshot.is_tip else ELSEWHERE)
        return (snapshot.end - before) * num_expected / (self._clock - snapshot.used + 1)
