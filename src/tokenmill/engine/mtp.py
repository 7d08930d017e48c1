"""Drafts of the layer that predicts further tokens (MTP), which a model's own files have.

The layer is a draft model of one layer, which reads beside each token the row that the model's head read for the token
before it (text_rows.py); beside a token that it drafted itself, the row that its own head read.

The layer reads a text from its second token on, or from the first one beside which a row is kept. Its K and V of a
token follow from that place and the tokens up to there, which the names of its blocks stand for: later texts with the
same beginning find them, and only what is missing needs rows of the model. K and V behind drafts, which were computed
with the layer's own rows, are never published.
"""

import logging
import os
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from tokenmill.engine.core import Core
from tokenmill.engine.draft import DraftCore, FollowedText, beside
from tokenmill.engine.text_rows import ROWS, TargetRows, TextRows
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.ranks import find_ranks_beside
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.model.families import read_config
from tokenmill.model.families.mtp import MTP
from tokenmill.program.hidden_rows import RowsRunner
from tokenmill.program.parts import Lent
from tokenmill.quant.schemes import GROUP
from tokenmill.registry import CHECKPOINT_CHECKS, lookup
from tokenmill.schedule.blocks import chain_digest
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint

log = logging.getLogger(__name__)

LARGE = 100_000  # tokens of a vocabulary whose first quarter is 0.9 of a text or more (docs/log/speculation.md)
OWN_LAYER = "mtp"  # the name of a draft model: the layer of this model that predicts further tokens
PROGRAMS = ("native", "eager")  # which hand out the rows that the head reads


@dataclass(eq=False)
class MtpText(FollowedText):
    """The layer's sequence of one text. known: the model's rows. drafted: the layer's own, behind tokens that it has
    drafted. salt: of the rows with which its K and V were computed. is_lost: rows of the model were wanted that are not
    kept any more.
    """

    known: TextRows = field(default_factory=TextRows)
    drafted: TextRows = field(default_factory=TextRows)
    salt: bytes | None = b""
    is_lost: bool = False


class MtpCore(DraftCore):
    """The layer with its own loop. rows: of the texts that it follows. is_limited: it drafts some tokens alone."""

    kind = MtpText
    few_pending = 18  # the rows of accepted drafts are computed again

    def __init__(self, core: Core, rows: TargetRows, is_limited: bool = False) -> None:
        super().__init__(core)
        self._rows, self._of_sequence, self._is_limited = rows, WeakValueDictionary[int, MtpText](), is_limited
        core.loaded.runner = RowsRunner(core.loaded.runner, self)

    def continuations(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """See DraftCore. No rows are held afterwards but TargetRows', and only its texts have followers.

        A follower whose blocks were taken, and whose rows cannot be computed again, begins anew with the next call.
        """
        for text in [each for each in self._followers if each.id not in self._rows.texts]:
            self._forget(text)
        try:
            found = super().continuations(sequences, limit)
            for text in [each for each in sequences if each.id in found and self._is_lost(each)]:
                self._forget(text)
                del found[text.id]
            return found
        finally:
            for follower in self._of_sequence.values():
                follower.known, follower.drafted = TextRows(), TextRows()
            self._of_sequence.clear()

    def _is_lost(self, text: Sequence) -> bool:
        follower = self._followers[text]
        assert isinstance(follower, MtpText)
        return follower.is_lost

    def _forget(self, text: Sequence) -> None:
        self._core.release(self._followers.pop(text).sequence)

    def _warn_of_failure(self) -> None:
        """Warn, unless none of the tokens that are drafted may come."""
        if not self._is_limited:
            super()._warn_of_failure()

    def _follow(self, text: Sequence, limit: int) -> Sequence | None:
        """Give the text's follower the text's tokens behind its first ones.

        Its K and V of drafts are computed again: the model's own rows are known now.
        """
        known, count = self._rows.texts.get(text.id), len(text.tokens)
        if known is None or known.first >= count - 1 or known.end < count - 1:
            return None
        follower = self._followers.get(text) or self._new_follower(text)
        assert isinstance(follower, MtpText)
        own = follower.sequence
        if own.finish_reason == "error":
            return None
        self._go_on(follower, text, known)
        first = follower.first
        length = min(count + limit, text.max_tokens, first + self._core.loaded.resolved.longest_text)
        if length <= count:
            return None
        if follower.given is not text.choosing or own.choosing.offset != first:
            params = replace(text.choosing.params, logprobs=None)
            # The model's matcher judges what is drafted.
            unbound: dict[str, Any] = {"constraint": None, "thinking": None, "penalties_from": None}
            own.choosing = replace(text.choosing, params=params, offset=first, **unbound)
            follower.given = text.choosing
        own.num_prompt_tokens, own.max_tokens = max(text.num_prompt_tokens - first, 0), length - first
        own.client, own.priority = text.client, text.priority
        follower.num_known, follower.known, follower.drafted = count - first, known, TextRows()
        self._of_sequence[own.id] = follower
        return own

    def _go_on(self, follower: MtpText, text: Sequence, known: TextRows) -> None:
        """Bring a follower to the text's tokens. What it keeps of them is what known rows were read beside."""
        own, scheduler = follower.sequence, self._core.scheduler
        alike = min(follower.num_alike(text.tokens[follower.first :]), follower.num_known, own.kept.num_computed)
        computed = min(follower.first + alike, len(text.tokens) - 1)
        is_followed = follower.num_known > 0 and follower.first <= computed and follower.salt == known.salt
        if is_followed:
            scheduler.rewind(own, computed - follower.first, text.tokens[computed:])
            own.kept.is_own = known.salt is not None
        if not is_followed or known.first >= follower.first + own.kept.num_computed:
            self._begin(follower, text, known)

    def _begin(self, follower: MtpText, text: Sequence, known: TextRows) -> None:
        """Give a follower the blocks that are found of the text, if the known rows begin there; otherwise it reads from
        the first token on beside which there is a row.
        """
        own, scheduler = follower.sequence, self._core.scheduler
        follower.salt = known.salt
        for first in (min(known.read_from, known.first + 1), known.first + 1):
            follower.first = known.read_from = first
            scheduler.rewind(own, 0, text.tokens[first:])
            own.kept.salt, own.kept.is_own = chain_digest(text.kept.salt, text.tokens[:first]), known.salt is not None
            scheduler.memory.match(own, scheduler.max_step_tokens)
            if known.first < first + own.kept.num_computed:
                return

    def given(self, plan: Plan) -> Tensor:
        """Make the row beside each token: the model's of the token before it, or the layer's own behind a draft."""
        found: list[Tensor] = []
        for work in plan.work:
            follower = self._of_sequence[work.sequence.id]
            begin, end = work.start - 1, work.start + work.count - 1  # of the tokens before
            own = max(begin, min(end, follower.num_known - 1))
            follower.is_lost = follower.is_lost or follower.first + begin < follower.known.first
            if follower.is_lost or own < end:
                work.sequence.kept.is_own = False  # nothing that is computed now is published
            if follower.is_lost:
                found.append(follower.known.rows(follower.known.end - 1, follower.known.end).expand(end - begin, -1))
                continue
            if begin < own:
                found.append(follower.known.rows(follower.first + begin, follower.first + own))
            if own < end:
                found.append(follower.drafted.rows(own, end))
        return torch.cat(found)

    def save(self, plan: Plan, firsts: List[int], hidden_TD: Tensor) -> None:
        """Keep the layer's own row of the last token of each sequence."""
        for work, first in zip(plan.work, firsts, strict=True):
            last = first + work.count - 1
            drafted = self._of_sequence[work.sequence.id].drafted
            drafted.save((), work.start + work.count - 1, hidden_TD[last : last + 1])


def max_texts(config: ResolvedConfig) -> int:
    """Count the texts whose rows are kept: as many as run, and as many that ended lately."""
    return 2 * config.max_sequences


def mtp_file(name: str | None) -> Path | None:
    """Find a GGUF file that has such a layer alone, as llama.cpp's converter writes it beside the model's file; None
    for another name.
    """
    path = Path(name or "").expanduser()
    if path.suffix != ".gguf" or not os.path.isfile(path):  # noqa: PTH113  (a name that is too long is no error)
        return None
    return path if lookup(CHECKPOINT_CHECKS, "mtp", "check")(path) else None


def refuse_rows(target: LoadedModel) -> str:
    """Say what would be allowed where a model does not hand out the rows that its head reads; empty where it does."""
    if target.program_name in PROGRAMS:
        return ""
    return f"none with program {target.program_name}, only with {' or '.join(PROGRAMS)}"


def refuse_mtp(checkpoint: Checkpoint, target: LoadedModel) -> str:
    """Say what would be allowed in the place of the model's own layer as a draft model; empty where it is."""
    if not target.model_config.num_mtp or (isinstance(checkpoint, PackedCheckpoint) and not checkpoint.is_copy):
        return "a model whose files, which are not packed, have a layer that predicts further tokens (MTP)"
    return refuse_rows(target)


def load_mtp(checkpoint: Checkpoint, target: LoadedModel, apart: Path | None = None) -> LoadedModel:
    """Load the layer that predicts further tokens of the model `target`, whose embedding and head it shares. apart: the
    file that has the layer alone.

    ConfigError where the files have no such layer, or the program cannot hand out rows. CapacityError where it does not
    fit beside the model.
    """
    config = target.config
    if allowed := refuse_mtp(checkpoint, target) if apart is None else refuse_rows(target):
        raise ConfigError("draft_model", str(config.draft_model or "mtp"), allowed)
    source, whole = open_checkpoint(checkpoint.path if apart is None else apart, part=MTP), target.model_config
    resolved = resolve_checkpoint(source, mtp_settings(target.resolved))
    found, wanted = (
        (each.family.removesuffix(MTP), each.hidden_size, each.vocab_size) for each in (resolved.model, whole)
    )
    if found != wanted:
        theirs, ours = (f"{family}, {width} numbers in a row, {size} tokens" for family, width, size in (found, wanted))
        raise ConfigError("draft_model", str(config.draft_model), f"a layer of this model ({ours}), not of {theirs}")
    if whole.num_mtp > 1:
        log.info("of %d layers that predict further tokens the first drafts alone", whole.num_mtp)
    needed, available = mtp_bytes(resolved), free_bytes(config.device)
    if needed > available:
        setting = "draft_model, max_length or max_sequences"
        raise CapacityError("memory for the layer that predicts further tokens", needed, available, setting, True)
    told = {"apart": None if apart is None else str(apart.resolve()), "num_logits": num_logits(target), "layers": None}
    ranks = find_ranks_beside(source, target.program, told)
    lent = Lent(target.program, num_logits(target))
    return load_model(source, resolved, ranks=ranks, lent=lent, facts=target.facts)


def mtp_settings(target: ResolvedModel) -> EngineConfig:
    """Make the settings with which the layer drafts beside this model."""
    config = target.config
    return beside(
        config,
        model=config.model,
        scheme=config.scheme,
        dtype=config.dtype,
        program=target.program_name,
        max_length=config.max_length,
        block_size=config.block_size,
        cache_tokens=config.cache_tokens if target.window.size is None else None,
        cache_format=config.cache_format,
        prefix_cache=config.prefix_cache,
        speculate="off",
        async_scheduling="off",  # a step's K and V are published before the next one reads rows of drafts
        packed_cache=False,
        tensor_parallel=config.tensor_parallel,
    )


def mtp_bytes(resolved: ResolvedModel) -> int:
    """Count the bytes that the layer takes beside its model, in all ranks: its weights, its cache, and the rows of
    texts.
    """
    config, program, count = resolved.config, resolved.program, resolved.config.tensor_parallel
    rows = max_texts(config) * ROWS * resolved.model.hidden_size * 8
    shared = replace(resolved.model, vocab_size=GROUP)  # without the embedding and the head
    if count == 1:
        return resolved.cache.num_bytes + rows + program.weight_bytes(shared, config.dtype, resolved.scheme)
    caches = program.rank_caches(resolved.cache, resolved.model, count)
    weights = program.rank_weight_bytes(shared, config.dtype, resolved.scheme, count)
    return sum(cache.num_bytes for cache in caches) + rows + sum(weights)


def planned_mtp(path: Path, target: ResolvedModel) -> int:
    """Count the bytes of the layer in this model's files; 0 where it does not draft with these settings, or there are
    no weights to tell.
    """
    config = choose_proposer(target.config, target.program.finds_drafts)
    drafts = config.draft_model == OWN_LAYER or (config.speculate == "adaptive" and config.draft_model is None)
    if not drafts or target.program_name not in PROGRAMS:
        return 0
    try:
        if not read_config(open_checkpoint(path).config).num_mtp:
            return 0
        return mtp_bytes(resolve_checkpoint(open_checkpoint(path, part=MTP), mtp_settings(target)))
    except (CheckpointError, ConfigError):
        return 0  # a load says why it does not draft


def num_logits(target: LoadedModel) -> int:
    """Count the tokens that are drafted. The head takes most of the time of a draft. Tokens of a byte-level vocabulary
    stand in the order of their frequency, so that the first quarter of a large one is nearly all of a text.
    """
    size, tokenizer = target.model_config.vocab_size, target.tokenizer
    is_large = size >= LARGE and tokenizer is not None and tokenizer.is_byte_level
    return size // 4 // GROUP * GROUP if is_large else 0
