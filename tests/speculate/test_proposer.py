"""Which proposer "auto" stands for, and what the plain one does."""

import warnings
from dataclasses import dataclass, replace

import pytest

from tokenmill.errors import ConfigError
from tokenmill.registry import PROPOSERS, lookup
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.speculate.proposer import NoProposer, Proposer, ProposerContext, choose, default_drafts


@dataclass(frozen=True)
class Settings:
    """What `choose` reads of a resolved config."""

    speculate: str = "auto"
    num_draft_tokens: int = 15
    cache: bool = True
    async_scheduling: str = "off"
    speculates: bool = False


def test_auto_guesses_where_the_same_bits_come_whatever_is_drafted():
    assert choose(Settings(), True).speculate == "adaptive"
    assert choose(Settings(), False).speculate == "off"
    assert choose(Settings(cache=False), True).speculate == "off"
    assert choose(Settings(async_scheduling="on"), True).speculate == "off"
    assert choose(Settings(speculates=True), False).speculate == "adaptive"  # something to draft from was given
    for name in ("off", "adaptive", "suffix", "draft_model"):
        assert choose(Settings(name, default_drafts(name)), False).speculate == name


def test_several_steps_in_one_call_need_program_native():
    assert choose(Settings("multi_step", 4), True).speculate == "multi_step"
    with pytest.raises(ConfigError) as refused:
        choose(Settings("multi_step", 4), False)
    assert str(refused.value) == (
        "speculate = 'multi_step' is not allowed: auto, off, adaptive or suffix, "
        "because several steps in one call are what program native does"
    )


def test_a_number_of_drafts_that_is_ignored_is_told():
    for settings, native in ((Settings("off", 7), True), (Settings("auto", 7), False)):
        with pytest.warns(UserWarning, match="num_draft_tokens = 7 is ignored: speculate is 'off'"):
            choose(settings, native)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(Settings("off", 4), True)
        choose(Settings("auto", 7), True)
        choose(Settings("suffix", 7), False)


def test_how_many_are_drafted_where_nothing_is_said():
    assert {name: default_drafts(name) for name in ("auto", *PROPOSERS)} == {
        "auto": 15, "off": 4, "adaptive": 15, "multi_step": 4, "suffix": 8, "draft_model": 4,
    }  # fmt: skip
    assert EngineConfig(speculate="suffix").num_draft_tokens in (None, 8)


def test_the_plain_proposer_proposes_nothing():
    proposer = lookup(PROPOSERS, "off", "speculate")(ProposerContext(True))
    assert isinstance(proposer, NoProposer) and proposer.is_off
    assert proposer.learn(None, []) is None and proposer.ended(None) is None


def test_a_proposer_must_propose():
    with pytest.raises(NotImplementedError):
        Proposer().propose([], 1, {})


def test_choosing_changes_nothing_else():
    given = Settings(num_draft_tokens=9)
    assert choose(given, True) == replace(given, speculate="adaptive")
