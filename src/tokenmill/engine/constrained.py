"""Where a constraint begins in a session's text, and whether the tokens of a resumed request fit theirs."""

from tokenmill.errors import RequestError
from tokenmill.sample.matchers import is_whole
from tokenmill.schedule.sequence import WHOLE, Sequence
from tokenmill.settings.sampling_params import SamplingParams


def where_constrained(wanted: Sequence, before: SamplingParams, start: int) -> int:
    """Where the text begins that the constraint of a session's call is about. before: the settings of the last call.

    It is `start`, so that a text is the same in one call and in several. If the last call had another constraint, or
    the text is whole that has begun there, another text begins.
    """
    choosing, length = wanted.choosing, len(wanted.tokens)
    if start >= length or not choosing.params.is_constrained_as(before):
        return length
    if choosing.constraint is None:
        return start
    matcher = choosing.constraint.matcher()
    fits = matcher.follow(wanted.tokens[start:]) == length - start
    return start if fits and not matcher.has_ended else length


def check_resumed(sequence: Sequence) -> None:
    """Check that the tokens of a resumed request fit its constraint, and end the sequence if nothing may follow."""
    if (constraint := sequence.choosing.constraint) is None:
        return
    given, matcher = sequence.tokens[sequence.num_prompt_tokens :], constraint.matcher()
    if (num_fitting := matcher.follow(given)) < len(given):
        place = f"token {num_fitting + 1} of {len(given)}"
        raise RequestError(f"emitted: {place} does not fit the constraint of this request", "emitted")
    if is_whole(sequence, matcher):
        sequence.finish_reason = WHOLE
