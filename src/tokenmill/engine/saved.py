"""The file of a session: reading it, and the header and tensors that are written."""

from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.cache.pool import STATES
from tokenmill.cache.session_file import SavedSession, read_session
from tokenmill.cache.snapshot import write_snapshot
from tokenmill.kernels.threads import torch_threads
from tokenmill.loader.loaded import LoadedModel
from tokenmill.schedule.sequence import Sequence

__all__ = ["read_saved", "snapshot_of", "write_snapshot"]


def read_saved(loaded: LoadedModel, path: Path, convert: bool) -> SavedSession:
    """Read the session in a file, for an engine of that model."""
    with torch_threads(loaded.config.threads):
        return read_session(path, loaded.compatibility, loaded.model_config.vocab_size, loaded.pool, convert)


def snapshot_of(
    loaded: LoadedModel, sequence: Sequence, num_cached: int, facts: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Make the header and the tensors of a file: of the first num_cached tokens, without the text's last token, which
    the next call feeds. facts: the header fields of the session.
    """
    kept, num_rows = sequence.kept, min(num_cached, len(sequence.tokens) - 1)
    is_loaded = not kept.saved or kept.num_computed >= kept.num_saved
    # One row more than the window needs, because the last token may be fed again.
    first_row = loaded.resolved.window.first_row(max(num_rows - 1, 0))
    first_row = max(first_row, kept.first_row if is_loaded else kept.first_saved)
    header = {
        **loaded.compatibility,
        # Rows that were computed under other conditions are saved with a build that equals no engine's own.
        **({} if kept.is_own else {"build": "mixed"}),
        "tokens": list(sequence.tokens),
        "first_row": first_row,
        "num_rows": num_rows,
        **facts,
    }
    with torch_threads(loaded.config.threads):
        if not is_loaded:
            spans = (first_row, num_rows), (0, 1)
            rows, states = (source(*span) for source, span in zip(kept.saved, spans, strict=True))
            return header, loaded.pool.converted({**rows, **states})
        pool, table = loaded.pool, kept.row_blocks(loaded.config.block_size)
        states = pool.read(pool.slots_of([] if kept.state is None else [kept.state], 1, STATES), STATES)
        return header, {**pool.read(pool.slots_of(table, num_rows)[first_row:]), **states}
