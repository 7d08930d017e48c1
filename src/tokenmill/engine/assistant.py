"""Drafts of an assistant: a checkpoint of a few layers that guesses the next tokens of one model, of which it reads the
rows of K and V (Gemma 4).

It has no rows of its own and no prefill. All drafts of a step have the position of the text's last token: each reads
the model's rows of the tokens before it, and one row that has the embedding of the last token, as the model reads it,
beside what the model's head read for the token before; behind a draft, what the assistant itself makes of its output.
"""

import os
from collections.abc import Sequence as List
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.cache.lent_pool import LentPool
from tokenmill.cache.step import Step
from tokenmill.engine.draft import beside
from tokenmill.engine.mtp import refuse_rows
from tokenmill.engine.text_rows import TargetRows
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.names import locate
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.ranks import find_ranks_beside
from tokenmill.model.description import DecoderDescription, describe
from tokenmill.model.families import read_config
from tokenmill.model.families.mtp import MTP
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.registry import ASSISTANTS
from tokenmill.sample.sampler import sample_singly
from tokenmill.sample.state import Row
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.text.tokenizer import read_json
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.names import name_of
from tokenmill.weights.packed.model import PackedCheckpoint

OUT = "post_projection.weight"
ROWS_KEPT = 4096  # of embeddings that were looked up


class Embeddings:
    """The rows with which the residual stream of a model begins, read from its files one by one."""

    def __init__(self, checkpoint: Checkpoint, target: LoadedModel) -> None:
        name = name_of(checkpoint, "embedding.weight")
        assert name is not None, "the model was loaded from it"
        self._name, self._checkpoint, self._dtype = name, checkpoint, getattr(torch, target.config.dtype)
        self._factor = torch.tensor(target.model_config.embedding_multiplier, dtype=self._dtype)
        self.row = lru_cache(ROWS_KEPT)(self._read)

    def _read(self, token: int) -> Tensor:
        row_D = self._checkpoint.read(self._name, torch.float32, range(token, token + 1))[0]
        return (row_D.to(self._dtype) * self._factor).float()


class AssistantCore:
    """The assistant of one engine. rows: what the head of its model has read. out_DH: makes of the assistant's own
    output what takes the place of such a row.
    """

    has_caught_up = is_behind = False

    def __init__(
        self, loaded: LoadedModel, target: LoadedModel, rows: TargetRows, embeddings: Embeddings, out_DH: Tensor
    ) -> None:
        self._loaded, self._target, self._rows = loaded, target, rows
        self._embeddings, self._out_DH = embeddings, out_DH

    @property
    def num_bytes(self) -> int:
        """Add up the memory of its weights."""
        return self._loaded.memory["weights_bytes"]

    def close(self) -> None:
        """Release the memory."""
        self._loaded.release()

    def continuations(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Draft at most `limit` tokens for each text, by its id; none for a text of which no row is known."""
        active = [each for each in sequences if self._is_known(each)]
        found: dict[int, list[int]] = {each.id: [] for each in active}
        given = {
            each.id: self._rows.texts[each.id].rows(len(each.tokens) - 2, len(each.tokens) - 1)[0] for each in active
        }
        step = None
        while active := [each for each in active if self._goes_on(each, found[each.id], limit)]:
            if step is None or len(step.spans) > len(active):  # all drafts of a text have the same place
                step = self._staged(active)
            for sequence, token, row_D in zip(active, *self._drafted(step, active, found, given), strict=True):
                found[sequence.id].append(token)
                given[sequence.id] = row_D
        return found

    def _is_known(self, text: Sequence) -> bool:
        rows, count = self._rows.texts.get(text.id), len(text.tokens)
        if count > self._loaded.config.max_length:
            return False
        return rows is not None and rows.first < count - 1 <= rows.end and text.kept.num_computed == count - 1

    def _goes_on(self, text: Sequence, drafts: List[int], limit: int) -> bool:
        length = len(text.tokens) + len(drafts)
        has_ended = bool(drafts) and drafts[-1] in text.choosing.stop_ids
        return len(drafts) < limit and length < text.max_tokens and not has_ended

    def _staged(self, active: List[Sequence]) -> Step:
        """Make the step of these texts: queries see the rows up to the last but one token, and have the position of the
        last.
        """
        step = self._target.runner.stage(Plan([Work(each, len(each.tokens) - 2, 1, 1) for each in active]))
        step.positions = [len(each.tokens) - 1 for each in active]
        step.token_ids = [0] * len(active)
        return step

    def _drafted(
        self, step: Step, active: List[Sequence], found: dict[int, list[int]], given: dict[int, Tensor]
    ) -> tuple[list[int], Tensor]:
        """Draft a token for each text; also return the row that the next draft reads."""
        last = [[*each.tokens[-1:], *found[each.id]][-1] for each in active]
        rows = [(self._embeddings.row(token), given[each.id]) for token, each in zip(last, active, strict=True)]
        step.given_TD, step.keeps_hidden = torch.stack([torch.cat(pair) for pair in rows]), True
        logits_RV, _ = self._loaded.program.run(step)
        assert step.hidden_TD is not None, "the program keeps it"
        wanted = [_row(each, found[each.id]) for each in active]
        sampled, _ = sample_singly(logits_RV, wanted)
        return sampled.tokens, step.hidden_TD.float() @ self._out_DH.T


def _row(text: Sequence, drafts: list[int]) -> Row:
    """Make the row of a draft, which the model's own matcher judges later."""
    params = replace(text.choosing.params, logprobs=None)
    choosing: Choosing = replace(text.choosing, params=params, constraint=None, thinking=None)
    return Row(choosing, len(text.tokens) + len(drafts), [*text.tokens, *drafts], text.num_prompt_tokens)


def is_assistant(name: str) -> bool:
    """Tell whether a directory holds an assistant."""
    path = Path(name).expanduser()
    if not os.path.isdir(path):  # noqa: PTH112  (a name that is too long is no error)
        return False
    kind = read_json(path / "config.json").get("model_type")
    return isinstance(kind, str) and kind in ASSISTANTS


def load_assistant(checkpoint: Checkpoint, target: LoadedModel, rows: TargetRows) -> AssistantCore:
    """Load the assistant that the settings of `target` name. ConfigError for an assistant of another model."""
    config, name = target.config, str(target.config.draft_model)
    if allowed := refuse_rows(target):
        raise ConfigError("draft_model", name, allowed)
    if config.tensor_parallel > 1 and target.program_name != "native":
        allowed = f"no assistant in ranks of program {target.program_name}, where its layers read rows of every rank"
        raise ConfigError("draft_model", name, f"{allowed}; ranks of program native have one")
    if isinstance(checkpoint, PackedCheckpoint) and not checkpoint.is_copy:
        raise ConfigError(
            "draft_model", name, "no assistant of a packed model, whose embedding cannot be read row by row"
        )
    source = open_checkpoint(locate(name), part=MTP)
    model, whole = read_config(source.config), describe(target.model_config)
    layers = _layers_for(name, describe(model), whole)
    if model.given_width != 2 * whole.head.inputs:
        allowed = (
            f"an assistant of a model as wide as this one: it is made for {model.given_width // 2} numbers in a row"
        )
        raise ConfigError("draft_model", name, f"{allowed}, and this model has {whole.head.inputs}")
    if model.vocab_size != target.model_config.vocab_size:
        allowed = f"an assistant with the same vocabulary: its own has {model.vocab_size} tokens"
        raise ConfigError("draft_model", name, f"{allowed}, this model's {target.model_config.vocab_size}")
    wanted, shape = (model.given_width // 2, model.hidden_size), source.shapes.get(OUT)
    if shape != wanted:
        told = {"missing": [OUT]} if shape is None else {"misshapen": [f"{OUT} {[*shape]} where {[*wanted]} goes"]}
        raise CheckpointError(f"{source.path} does not fit its config", **told)
    settings = beside(
        target.config,
        model=name,
        dtype=config.dtype,
        program=target.program_name,
        max_length=min(config.max_length, model.context),
        block_size=config.block_size if config.block_size <= model.context else None,
        cache_format=config.cache_format,
        prefix_cache=False,
        speculate="off",
        packed_cache=False,
        tensor_parallel=config.tensor_parallel,
    )
    own = open_checkpoint(checkpoint.path) if isinstance(checkpoint, PackedCheckpoint) else checkpoint
    beside_told = {"apart": str(source.path.resolve()), "num_logits": None, "layers": layers}
    ranks = find_ranks_beside(source, target.program, beside_told, LentPool(target.pool, layers))
    loaded = load_model(source, resolve_checkpoint(source, settings), ranks=ranks, facts=target.facts)
    return AssistantCore(loaded, target, rows, Embeddings(own, target), source.read(OUT, torch.float32).float())


def _layers_for(name: str, assistant: DecoderDescription, target: DecoderDescription) -> list[int]:
    """Number the layers of the model's cache that the assistant reads: the last one of each kind that has rows of its
    own, in the order of the assistant's sources; and one for each other layer of the assistant, which reads none.
    """
    found = dict[int, int]()
    with_rows = _with_rows(target)
    for block in assistant.attentions:
        assert block.source is not None, "it has no rows of its own"
        sees_all = block.shape.window is None
        own = [pair for pair in with_rows if (pair[1].shape.window is None) == sees_all]
        if not own or own[-1][1].rows.num_kv_heads != block.num_kv_heads or own[-1][1].head_dim != block.head_dim:
            shape = f"{block.num_kv_heads} heads of {block.head_dim} for K and V"
            window = "without a window" if block.shape.window is None else f"with a window of {block.shape.window}"
            raise ConfigError("draft_model", name, f"an assistant of this model: it reads rows {window}, {shape}")
        found[block.source] = own[-1][0]
    rest = next(iter(found.values()))
    return [found.get(number, rest) for number in range(len(assistant.layers))]


def _with_rows(target: DecoderDescription) -> list[tuple[int, AttentionBlock]]:
    """List the attention of every layer that has rows of its own, with its layer of the cache."""
    of_layers = zip(target.layers, target.kept_by, strict=True)
    pairs = [pair for layer, numbers in of_layers for pair in zip(numbers, layer.mixers, strict=True)]
    return [(number, each) for number, each in pairs if isinstance(each, AttentionBlock) and each.source is None]
