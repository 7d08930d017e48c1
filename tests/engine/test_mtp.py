"""Drafts of the layer that predicts further tokens, beside those of transformers' layers; texts stay as they are."""

import pytest

from tests.marks import needs_native
from tests.mtp_models import MODELS, drafts, save_with_mtp
from tests.tiny_models import prompt
from tokenmill import load

PROGRAMS = ["eager", pytest.param("native", marks=needs_native)]
SETTINGS = {"dtype": "float32", "packed_cache": False, "device": "cpu"}
MTP = {**SETTINGS, "speculate": "draft_model", "draft_model": "mtp", "num_draft_tokens": 3}


def recorded(engine):
    """Have the engine keep what is drafted after which tokens."""
    draft, found = engine.core.speculation.draft, []
    continuations = draft.continuations

    def record(sequences, limit):
        made = continuations(sequences, limit)
        found.extend((list(each.tokens), made[each.id]) for each in sequences if made.get(each.id))
        return made

    draft.continuations = record
    return found


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_those_of_the_layer(name, program, models):
    engine = load(save_with_mtp(name, models), program=program, prefix_cache=False, **MTP)
    made, given = recorded(engine), prompt(23, seed=5)
    engine.generate(given, max_new_tokens=12, ignore_eos=True)
    assert len(made) > 5 and made[0][0][:23] == given
    for tokens, drafted in made:
        wanted, margins = drafts(name, tokens, len(drafted))
        sure = next((at for at, margin in enumerate(margins) if margin < 1e-3), len(margins))
        assert drafted[:sure] == wanted[:sure], tokens
