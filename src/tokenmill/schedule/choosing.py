"""The record Choosing: all that decides the next token of a sequence, beside the model and its own tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenmill.settings.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Choosing:
    """One record, handed on whole to sessions, forks, drafts and the sampler's rows.

    stop_ids: token id → the finish reason it gives. penalties_from: the position from which presence and frequency
    penalties count; None is the end of the prompt. bad_words: token ids of each word that the output must not hold.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop_ids: Mapping[int, str] = field(default_factory=dict)
    penalties_from: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
