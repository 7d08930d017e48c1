"""What a draft model drafts while an engine generates, beside what a reference drafts."""

SURE = 1e-3  # between the two largest logits of the reference


def recorded(engine, is_wanted=lambda text: True):
    """Have the engine keep what is drafted after which tokens, and from which token on a follower reads, if there is
    one. is_wanted: says whether to keep what is drafted of a text.
    """
    draft, found = engine.core.speculation.draft, []
    continuations, followers = draft.continuations, getattr(draft, "_followers", {})

    def record(sequences, limit):
        made = continuations(sequences, limit)
        for each in sequences:
            if made.get(each.id) and is_wanted(each):
                first = (followers[each].first,) if each in followers else ()
                found.append((list(each.tokens), made[each.id], *first))
        return made

    draft.continuations = record
    return found


def check(name, made, drafts):
    """What was drafted is what the reference drafts, as far as that is sure. drafts: of the reference, see
    tests/mtp_models.py.
    """
    assert made
    for tokens, drafted, *first in made:
        wanted, margins = drafts(name, tokens, len(drafted), *first)
        sure = next((at for at, margin in enumerate(margins) if margin < SURE), len(margins))
        assert drafted[:sure] == wanted[:sure], tokens
