"""The file of a session: reading it, and the header and tensors that are written."""

from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.cache.header import read_session_facts
from tokenmill.cache.pool import STATES
from tokenmill.cache.session_file import SavedSession, read_session
from tokenmill.cache.snapshot import write_snapshot
from tokenmill.engine.core import Core
from tokenmill.errors import SnapshotError
from tokenmill.kernels.threads import torch_threads
from tokenmill.loader.loaded import LoadedModel
from tokenmill.schedule.sequence import Sequence
from tokenmill.value_reader import brief

ADAPTER = "adapter"
"""A field of the header with the name of an adapter, and among the digests of the model the adapter's own."""

__all__ = ["read_saved", "snapshot_of", "write_snapshot"]


def read_saved(core: Core, path: Path, convert: bool) -> tuple[SavedSession, Any]:
    """Read the session in a file, and find its adapter among the loaded ones. SnapshotError where it is not loaded."""
    loaded, adapter = core.loaded, _adapter_of(core, path)
    with torch_threads(loaded.config.threads):
        ours = _compatibility(loaded, adapter)
        return read_session(path, ours, loaded.model_config.vocab_size, loaded.pool, convert), adapter


def _compatibility(loaded: LoadedModel, adapter: Any) -> dict[str, Any]:
    """Make the header of rows that are computed with an adapter: its digest is one of the model's."""
    header = loaded.compatibility
    if adapter is None:
        return header
    return {**header, "fingerprint": {**header["fingerprint"], ADAPTER: adapter.digest.hex()}}


def _adapter_of(core: Core, path: Path) -> Any:
    """Find the loaded adapter with the bytes of the one that has computed the rows in a file."""
    facts = read_session_facts(path)
    wanted, name = facts["fingerprint"].get(ADAPTER), facts.get(ADAPTER)
    if wanted is None:
        return None
    if (found := core.adapters.with_digest(wanted)) is None:
        same = core.adapters.by_name.get(name)
        other = "" if same is None else f"; the one of that name here has other bytes ({same.path})"
        what = f"was computed with adapter {brief(name)} (sha256 {brief(wanted)}), which is not loaded{other}"
        raise SnapshotError(f"{path} {what}: load that one first (load_adapter, --adapter)")
    return found


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
        **_compatibility(loaded, kept.adapter),
        **({} if kept.adapter is None else {ADAPTER: kept.adapter.name}),
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
