"""Drafts of the layer that predicts further tokens (MTP), which a model's own files have.

The layer is a draft model of one layer, which reads beside each token the row that the model's head read for the token
before it; beside a token that it drafted itself, the row that its own head read. Those rows are kept for the last
tokens of each text. A text follows from the first token whose rows are known: rows of tokens that were found in a cache
are not, and neither are rows from before the last ROWS tokens.
"""

import logging
import os
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from tokenmill.engine.core import Core
from tokenmill.engine.draft import DraftCore, FollowedText, beside
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.kernels.devices import free_bytes
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.model.families import read_config
from tokenmill.model.families.mtp import MTP
from tokenmill.program.hidden_rows import RowsRunner
from tokenmill.program.parts import Lent
from tokenmill.quant.schemes import GROUP
from tokenmill.registry import CHECKPOINT_CHECKS, lookup
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig
from tokenmill.speculate.proposer import choose as choose_proposer
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint

log = logging.getLogger(__name__)

ROWS = 2048  # 20 MB of a model with 2,560 numbers in a row; the layer reads most from tokens that are nearer
LARGE = 100_000  # tokens of a vocabulary whose first quarter is 0.9 of a text or more (docs/log/speculation.md)
PROGRAMS = ("native", "eager")  # which hand out the rows that the head reads


class TextRows:
    """Rows of the last tokens of one text: of its tokens [first, end)."""

    def __init__(self) -> None:
        self.first = self.end = 0
        self._tokens: List[int] = ()
        self._rows_CD: Tensor | None = None

    def save(self, tokens: List[int], start: int, rows_TD: Tensor) -> None:
        """Keep the rows of tokens from `start` on, which take the place of rows that are there. tokens: of the text."""
        self.cut(min(self._num_alike(tokens), start))
        self._tokens = tokens
        if start != self.end:  # rows between are not known
            self.first = self.end = start
        if (skipped := len(rows_TD) - ROWS) > 0:
            self.first, self.end, rows_TD = start + skipped, start + skipped, rows_TD[skipped:]
        kept, room = self.end - self.first, 0 if self._rows_CD is None else len(self._rows_CD)
        if kept + len(rows_TD) > room:
            kept = min(kept, ROWS)
            new_CD = rows_TD.new_empty((min(max(2 * (kept + len(rows_TD)), 64), 2 * ROWS), rows_TD.shape[1]))
            if kept:
                new_CD[:kept] = self.rows(self.end - kept, self.end)
            self._rows_CD, self.first = new_CD, self.end - kept
        assert self._rows_CD is not None
        self._rows_CD[kept : kept + len(rows_TD)] = rows_TD
        self.end += len(rows_TD)

    def cut(self, end: int) -> None:
        """Forget the rows from `end` on."""
        self.end = min(self.end, end)
        self.first = min(self.first, self.end)

    def rows(self, first: int, end: int) -> Tensor:
        """Return the rows of the tokens [first, end), which are all known."""
        assert self._rows_CD is not None and self.first <= first < end <= self.end
        return self._rows_CD[first - self.first : end - self.first]

    def _num_alike(self, tokens: List[int]) -> int:
        """Count the tokens at the beginning that the text had before, too. A list of tokens only grows."""
        before = self._tokens
        if before is tokens or before[: self.end] == tokens[: self.end]:
            return self.end
        return next((at for at, pair in enumerate(zip(before, tokens, strict=False)) if pair[0] != pair[1]), 0)


class TargetRows:
    """The rows of the texts of the model whose tokens are drafted: of the last max_texts that were computed."""

    def __init__(self, max_texts: int) -> None:
        self._max_texts = max_texts
        self.texts: WeakKeyDictionary[Sequence, TextRows] = WeakKeyDictionary()  # the least recently computed first

    def given(self, plan: Plan) -> None:
        """Give nothing: the model reads tokens alone."""

    def save(self, plan: Plan, firsts: List[int], hidden_TD: Tensor) -> None:
        """Keep the rows of a step's texts."""
        for work, first in zip(plan.work, firsts, strict=True):
            rows = self.texts.pop(work.sequence, None) or TextRows()
            rows.save(work.sequence.tokens, work.start, hidden_TD[first : first + work.count])
            self.texts[work.sequence] = rows
        while len(self.texts) > self._max_texts:
            del self.texts[next(iter(self.texts.keys()))]


@dataclass(eq=False)
class MtpText(FollowedText):
    """The layer's sequence of one text. known: the model's rows. drafted: the layer's own, behind tokens that it has
    drafted.
    """

    known: TextRows = field(default_factory=TextRows)
    drafted: TextRows = field(default_factory=TextRows)


class RowsMissing(Exception):
    """Rows of the model are wanted that are not kept any more."""


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

        Where the blocks of a follower were taken whose rows cannot be computed again, all of them begin anew.
        """
        for text in [each for each in self._followers if each not in self._rows.texts]:
            self._forget(text)
        try:
            return super().continuations(sequences, limit)
        except RowsMissing:
            for text in sequences:
                self._forget(text)
            return {}
        finally:
            for follower in self._of_sequence.values():
                follower.known, follower.drafted = TextRows(), TextRows()
            self._of_sequence.clear()

    def _forget(self, text: Sequence) -> None:
        follower = self._followers.pop(text, None)
        if follower is not None:
            self._core.release(follower.sequence)

    def _warn_of_failure(self) -> None:
        """Warn, unless none of the tokens that are drafted may come."""
        if not self._is_limited:
            super()._warn_of_failure()

    def _follow(self, text: Sequence, limit: int) -> Sequence | None:
        """Give the text's follower the text's tokens behind those whose rows are known.

        Its rows of drafts are computed again: the model's own rows are known now.
        """
        loaded, known, count = self._core.loaded, self._rows.texts.get(text), len(text.tokens)
        if known is None or known.first >= count - 1 or known.end < count - 1:
            return None
        follower = self._followers.get(text) or self._new_follower(text)
        assert isinstance(follower, MtpText)
        own = follower.sequence
        # Rows of drafts were computed with the layer's own; blocks may have been taken.
        alike = min(follower.num_alike(text.tokens[follower.first :]), follower.num_known, own.kept.num_computed)
        computed = min(follower.first + alike, count - 1)
        if computed < follower.first or not known.first < computed or not follower.num_known:
            follower.first = computed = known.first + 1
        first = follower.first
        length = min(count + limit, text.max_tokens, first + loaded.resolved.longest_text)
        if own.finish_reason == "error" or length <= count:
            return None
        self._core.scheduler.rewind(own, computed - first, text.tokens[computed:])
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

    def given(self, plan: Plan) -> Tensor:
        """Make the row beside each token: the model's of the token before it, or the layer's own behind a draft."""
        found: list[Tensor] = []
        for work in plan.work:
            follower = self._of_sequence[work.sequence.id]
            begin, end = work.start - 1, work.start + work.count - 1  # of the tokens before
            own = max(begin, min(end, follower.num_known - 1))
            if follower.first + begin < follower.known.first:
                raise RowsMissing
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
    count = target.config.tensor_parallel
    if target.program_name in PROGRAMS and count == 1:
        return ""
    several = f" in {count} ranks" * (count > 1)
    return f"none with program {target.program_name}{several}, only with {' or '.join(PROGRAMS)} in one process"


def refuse_mtp(checkpoint: Checkpoint, target: LoadedModel) -> str:
    """Say what would be allowed in the place of the model's own layer as a draft model; empty where it is."""
    if not target.model_config.has_mtp or (isinstance(checkpoint, PackedCheckpoint) and not checkpoint.is_copy):
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
    needed, available = mtp_bytes(resolved), free_bytes(config.device)
    if needed > available:
        setting = "draft_model, max_length or max_sequences"
        raise CapacityError("memory for the layer that predicts further tokens", needed, available, setting, True)
    return load_model(source, resolved, lent=Lent(target.program, num_logits(target)), facts=target.facts)


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
        prefix_cache=False,
        speculate="off",
        packed_cache=False,
    )


def mtp_bytes(resolved: ResolvedModel) -> int:
    """Count the bytes that the layer takes beside its model: its weights, its cache, and the rows of texts."""
    config = resolved.config
    rows = max_texts(config) * ROWS * resolved.model.hidden_size * 8
    shared = replace(resolved.model, vocab_size=GROUP)  # without the embedding and the head
    return resolved.cache.num_bytes + rows + resolved.program.weight_bytes(shared, config.dtype, resolved.scheme)


def planned_mtp(path: Path, target: ResolvedModel) -> int:
    """Count the bytes of the layer in this model's files; 0 where it does not draft by itself with these settings, or
    there are no weights to tell.
    """
    config = choose_proposer(target.config, target.program.finds_drafts)
    drafts = config.speculate == "adaptive" and config.draft_model is None and config.tensor_parallel == 1
    if not drafts or target.program_name not in PROGRAMS:
        return 0
    try:
        if not read_config(open_checkpoint(path).config).has_mtp:
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
