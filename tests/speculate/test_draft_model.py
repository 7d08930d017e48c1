"""Proposer draft_model: which sequences its model is asked for."""

import pytest

from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import Sequence
from tokenmill.speculate.draft_model import DraftModel
from tokenmill.speculate.proposer import ProposerContext


class Noted:
    """A draft model that answers with the ids of what it is asked for."""

    def __init__(self):
        self.asked = []

    def continuations(self, sequences, limit):
        self.asked.append(([each.id for each in sequences], limit))
        return {each.id: [each.id] * limit for each in sequences}


def sequence(number, num_computed=2, score_from=None):
    return Sequence(number, [1, 2, 3], 3, 30, kept=Kept(num_computed), score_from=score_from)


def test_only_what_decodes_is_drafted():
    """Not a prompt that is still read, nor one that is only scored, even from its first token on."""
    model = Noted()
    proposer = DraftModel(ProposerContext(False, draft=model))
    running = [sequence(1), sequence(2, num_computed=1), sequence(3, score_from=0), sequence(4), sequence(5, 3)]
    assert proposer.propose(running, 2, {}) == {1: [1, 1], 4: [4, 4]}
    assert model.asked == [([1, 4], 2)]


def test_where_nothing_decodes_the_model_is_not_asked():
    model = Noted()
    assert DraftModel(ProposerContext(False, draft=model)).propose([sequence(2, num_computed=0)], 2, {}) == {}
    assert model.asked == []


def test_without_a_model_there_is_no_such_proposer():
    with pytest.raises(AssertionError, match="checked with the settings"):
        DraftModel(ProposerContext(False))
