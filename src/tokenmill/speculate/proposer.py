"""Proposers guess the next tokens of sequences. A guess can cost time but never change the text: every drafted position
is sampled by the target model itself, with that position's own number (arXiv 2408.07978).
"""

import warnings
from collections.abc import Sequence as List
from dataclasses import replace
from typing import Protocol

from tokenmill.config import EngineConfig, ResolvedConfig
from tokenmill.errors import ConfigError
from tokenmill.schedule.sequence import Sequence

__all__ = ["PROPOSERS", "NoProposer", "Proposer", "choose"]

PROPOSERS = {
    "none": "tokenmill.speculate.proposer:NoProposer",
    "multi_step": "tokenmill.speculate.multi_step:MultiStep",
    "prompt_lookup": "tokenmill.speculate.prompt_lookup:PromptLookup",
}


class Proposer(Protocol):
    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Sequence id → at most `limit` tokens that may follow its own. Sequences may be left out."""


class NoProposer:
    """Proposer none: speculation is off."""

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        return {}


def choose(config: ResolvedConfig, finds_drafts: bool) -> ResolvedConfig:
    """A resolved config with the proposer that "auto" stands for. finds_drafts: as its Program says."""
    if config.proposer == "auto":
        several = finds_drafts and config.cache and config.async_scheduling == "off"
        config = replace(config, proposer="multi_step" if several else "none")
    if config.proposer == "multi_step" and not finds_drafts:
        allowed = "auto, none or prompt_lookup, because several steps in one call are what program native does"
        raise ConfigError("proposer", config.proposer, allowed)
    if config.proposer == "none" and config.num_drafts != EngineConfig.num_drafts:
        warnings.warn(f"num_drafts = {config.num_drafts} is ignored: proposer is 'none'", stacklevel=2)
    return config
