"""A Proposer guesses the next tokens of sequences. A guess can cost time but never change the text: every drafted
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
        """Whether the last call computed tokens that its sequences had missed, beside drafting."""

    @property
    def is_behind(self) -> bool:
        """Whether a sequence has so many of these that the next call computes more, and it got no drafts."""

    @property
    def num_bytes(self) -> int:
        """Its weights and its cache take so much memory."""

    def close(self) -> None:
        """Give that memory back."""


class TextStore(Protocol):
    """Texts of earlier requests. See speculate/suffix_store.py."""

    def guess(self, tokens: List[int], limit: int) -> tuple[list[int], int]:
        """Return at most `limit` tokens that followed the longest suffix that was found, and the length of
        that suffix.
        """

    def add(self, tokens: List[int]) -> None:
        """Keep a text."""

    def close(self) -> None:
        """Write what is not on disk yet."""


class ProposerContext(NamedTuple):
    """The facts of an engine that a proposer may know. finds_drafts: as its Program says. The others are there if asked
    for.
    """

    finds_drafts: bool
    draft: Draft | None = None
    store: TextStore | None = None


Forced = Mapping[int, List[int]]
"""By the id of a sequence, the tokens that its constraint demands next."""


class Proposer:
    """Made with the ProposerContext of the engine. is_off: it is never asked."""

    is_off = False

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        """Draft at most `limit` tokens for each sequence, by its id. Sequences may be left out. Forced tokens take the
        place of drafts that do not begin with them.
        """
        raise NotImplementedError

    def learn(self, plan: Plan, accepted: List[List[int]]) -> None:
        """Called when a step is done: what was computed, and for each of its work items the accepted tokens."""

    def ended(self, sequence: Sequence) -> None:
        """Called when a text has ended, with all of its tokens."""


class NoProposer(Proposer):
    """Speculation is off: plain decoding."""

    is_off = True

    def __init__(self, _: ProposerContext) -> None:
        pass


def choose(config: ResolvedConfig, finds_drafts: bool) -> ResolvedConfig:
    """Resolve the proposer that "auto" stands for. finds_drafts: as its Program says."""
    is_given = config.num_draft_tokens != default_drafts(config.speculate)
    if config.speculate == "auto":
        # Where the same bits come whatever is drafted; elsewhere only if something to draft from was given.
        is_exact = finds_drafts and config.cache and config.async_scheduling == "off"
        config = replace(config, speculate="adaptive" if is_exact or config.speculates else "off")
    if config.speculate == "multi_step" and not finds_drafts:
        allowed = "auto, off, adaptive or suffix, because several steps in one call are what program native does"
        raise ConfigError("speculate", config.speculate, allowed)
    if config.speculate == "off" and is_given:
        warnings.warn(f"num_draft_tokens = {config.num_draft_tokens} is ignored: speculate is 'off'", stacklevel=2)
    return config


def default_drafts(proposer: str) -> int:
    """Return num_draft_tokens where it is not given. "auto" has that of adaptive, which it may become."""
    return {"auto": 15, "adaptive": 15, "suffix": 8}.get(proposer, 4)
