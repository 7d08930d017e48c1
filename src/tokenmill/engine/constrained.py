"""Where a constraint begins in a session's text, and whether the tokens of a resumed request fit theirs."""

from tokenmill.errors import RequestError
from tokenmill.sample.matchers import is_whole, matcher_of
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
    if (matcher := matcher_of(wanted)) is None:
        return start
    fits = matcher.follow(wanted.tokens[start:]) == length - start
    return start if fits and not matcher.has_ended else length


def check_resumed(sequence: Sequence) -> None:
    """Check that the tokens of a resumed request fit its constraint, and end the sequence if nothing may follow."""
    if (matcher := matcher_of(sequence)) is None:
        return
    given = sequence.tokens[sequence.num_prompt_tokens :]
    if (num_fitting := matcher.follow(given)) < len(given):
        place = f"token {num_fitting + 1} of {len(given)}"
        raise RequestError(f"emitted: {place} does not fit the constraint of this request", "emitted")
    if is_whole(sequence, matcher):
        sequence.finish_reason = WHOLE
