"""The answer of `/v1/cache`: the state of each block, and who holds blocks."""

from collections.abc import Collection, Mapping
from typing import Any

from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence

Json = dict[str, Any]


def cache_view(scheduler: Scheduler, answers: Mapping[int, str], client: bytes) -> Json:
    """blocks: a letter for each, `f` free, `k` free and kept for prompts that begin alike, `u` in use, `s` shared.

    texts: those of the client, by the id of their answer. Of others, and of sessions, it says how many there are.
    """
    unfinished = [("running", each) for each in scheduler.running] + [("waiting", each) for each in scheduler.waiting]
    others = [each for _, each in unfinished if each.client != client]
    texts = [(state, each) for state, each in unfinished if each.client == client]
    return {
        "block_size": scheduler.allocator.block_size,
        "blocks": "".join(map(scheduler.allocator.state_of, range(scheduler.allocator.num_blocks))),
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "texts": [_describe(scheduler, state, each, answers.get(each.id)) for state, each in texts],
        "others": _counted(others),
        "sessions": _counted(scheduler.parked),
    }


def _counted(sequences: Collection[Sequence]) -> Json:
    return {"texts": len(sequences), "blocks": len({block for each in sequences for block in each.kept.blocks})}


def _describe(scheduler: Scheduler, state: str, sequence: Sequence, answer: str | None) -> Json:
    references = scheduler.allocator.references
    return {
        "id": answer,
        "state": state,
        "tokens": len(sequence.tokens),
        "prompt_tokens": sequence.num_prompt_tokens,
        "cached_tokens": sequence.num_cached_tokens,
        "blocks": len(sequence.kept.blocks),
        "shared": sum(references[block] > 1 for block in sequence.kept.blocks),
    }
