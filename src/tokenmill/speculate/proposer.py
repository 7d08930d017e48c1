"""Proposers guess the next tokens of sequences. A guess can cost time but never change the text: every drafted
position is sampled by the target model itself, with that position's own number (arXiv 2408.07978).
"""

import warnings
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from typing import NamedTuple, Protocol

from tokenmill.errors import ConfigError
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.settings.engine_config import ResolvedConfig


class Draft(Protocol):
    """A second model, loaded. See engine/draft.py."""

    def continuations(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Draft at most `limit` tokens for each sequence, by its id."""

    @property
    def has_caught_up(self) -> bool:
        """Say whether the last call computed tokens that its sequences had missed, beside drafting."""

    @property
    def is_behind(self) -> bool:
        """Say whether a sequence has missed so many tokens that the next call computes more, and it got no drafts."""

    @property
    def num_bytes(self) -> int:
        """Add up the memory of its weights and its cache."""

    def close(self) -> None:
        """Release the memory."""


class TextStore(Protocol):
    """Texts of earlier requests. See speculate/suffix_store.py."""

    def guess(self, tokens: List[int], limit: int) -> tuple[list[int], int]:
        """Return at most `limit` tokens that followed the longest suffix found, and the length of that suffix."""

    def add(self, tokens: List[int]) -> None:
        """Keep a text."""

    def close(self) -> None:
        """Write the texts that are not on disk yet."""


class ProposerContext(NamedTuple):
    """The facts of an engine for proposers. finds_drafts: as its Program says. draft, store: if asked for."""

    finds_drafts: bool
    draft: Draft | None = None
    store: TextStore | None = None


Forced = Mapping[int, List[int]]
"""Sequence id → the tokens that its constraint demands next."""


class Proposer:
    """A proposer, made with the ProposerContext of the engine. is_off: it is never asked."""

    is_off = False

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        """Draft at most `limit` tokens for some sequences, by id. Forced tokens replace drafts that begin otherwise."""
        raise NotImplementedError

    def learn(self, plan: Plan, accepted: List[List[int]]) -> None:
        """Learn from a step that is done: its plan, and the accepted tokens of each work item."""

    def ended(self, sequence: Sequence) -> None:
        """Note that a text has ended, with all of its tokens."""


class NoProposer(Proposer):
    """The proposer of plain decoding: speculation is off."""

    is_off = True

    def __init__(self, _: ProposerContext) -> None:
        pass


def choose(config: ResolvedConfig, finds_drafts: bool) -> ResolvedConfig:
    """Resolve the proposer that "auto" stands for. finds_drafts: as its Program says."""
    is_given = config.num_draft_tokens != default_drafts(config.speculate)
    if config.speculate == "auto":
        # Where drafts change no bit; elsewhere only if something to draft from was given.
        is_exact = finds_drafts and config.cache and config.async_scheduling == "off"
        config = replace(config, speculate="adaptive" if is_exact or config.speculates else "off")
    if config.speculate == "multi_step" and not finds_drafts:
        allowed = "auto, off, adaptive or suffix, because several steps in one call are what program native does"
        raise ConfigError("speculate", config.speculate, allowed)
    if config.speculate == "off" and is_given:
        warnings.warn(f"num_draft_tokens = {config.num_draft_tokens} is ignored: speculate is 'off'", stacklevel=2)
    return config


def default_drafts(proposer: str) -> int:
    """Return num_draft_tokens where it is not given; "auto" has the number of adaptive, which it may become."""
    return {"auto": 15, "adaptive": 15, "suffix": 8}.get(proposer, 4)
