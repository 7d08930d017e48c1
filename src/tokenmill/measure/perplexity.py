"""Perplexity over sliding windows, and the divergence of two engines.

The windows are as in Hugging Face's "Perplexity of fixed-length models": `window` tokens are fed, each window begins
`stride` tokens after the last, and only tokens that no window has scored yet are scored. A window's first token follows
nothing and is never scored; with stride = window that is one token of each, otherwise the text's first alone. A
window's mean is weighted by the tokens that it is the mean of; the recipe's own code takes one too few there.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.engine.engine import Engine
from tokenmill.errors import ConfigError, RequestError, overflow_remedy
from tokenmill.hub.progress import Progress, Silent
from tokenmill.kernels.threads import over_rows
from tokenmill.sample.logprobs import log_probability_of
from tokenmill.text.tokenizer import Tokenizer

DEFAULT_WINDOW = 1024
NUM_WORST = 10
CHUNK_ROWS = 4  # of logits, turned into log-probabilities at a time


class ScoredWindow(NamedTuple):
    """A window: tokens[start:end] are fed, and of these tokens[first:end] are scored."""

    start: int
    first: int
    end: int


def choose_window(window: int | None, stride: int | None, context: int) -> tuple[int, int]:
    """Return window and stride with their defaults in place, or raise a ConfigError that names the option."""
    if window is None:
        window = min(context, DEFAULT_WINDOW)
    if not 2 <= window <= context:
        raise ConfigError("window", window, f"a whole number from 2 to this model's context, {context}", "--window")
    if stride is None:
        stride = window // 2
    if not 1 <= stride <= window:
        raise ConfigError("stride", stride, f"a whole number from 1 to the window, {window}", "--stride")
    return window, stride


def windows(num_tokens: int, window: int, stride: int) -> Iterator[ScoredWindow]:
    """Yield the windows over a text, without windows that would score nothing."""
    assert 1 <= stride <= window, "choose_window comes first"
    scored = 0
    for start in range(0, num_tokens, stride):
        end = min(start + window, num_tokens)
        first = max(scored, start + 1)
        if first < end:
            yield ScoredWindow(start, first, end)
        if end == num_tokens:
            return
        scored = end


class ScoredText(NamedTuple):
    """A text as tokens. tokens: with added ones; num_text_tokens: without them. num_bytes: in UTF-8."""

    tokens: list[int]
    num_text_tokens: int
    num_bytes: int


def read_text(text: str, tokenizer: Tokenizer, max_tokens: int | None = None) -> ScoredText:
    """Encode the first `max_tokens` tokens of a text, and count the bytes that they stand for."""
    every = tokenizer.encode(text)
    tokens = every[:max_tokens]
    added = set(tokenizer.encode(""))
    own = [token for token in tokens if token not in added]
    shown = text if len(tokens) == len(every) else tokenizer.decode(own, skip_special=False)
    return ScoredText(tokens, len(own), len(shown.encode()))


@dataclass(frozen=True)
class Perplexity:
    """One engine's figures on a text. nll: sum over the scored tokens, in nats. elapsed_s: of that engine alone."""

    num_tokens: int
    num_scored: int
    num_windows: int
    nll: float
    elapsed_s: float

    @property
    def nll_per_token(self) -> float:
        """The mean negative log-likelihood, in nats."""
        return self.nll / self.num_scored

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-likelihood."""
        return math.exp(self.nll_per_token)

    @property
    def tokens_per_s(self) -> float:
        """Scored tokens; a stride under the window feeds many of them twice."""
        return self.num_scored / self.elapsed_s

    def bits_per_byte(self, text: ScoredText) -> float:
        """Compute the bits per byte of the whole text; tokens that are not scored count as the mean."""
        return self.nll_per_token / math.log(2) * text.num_text_tokens / max(text.num_bytes, 1)


class ScoredToken(NamedTuple):
    """A scored token, by its position in the text. kl_divergence: as Comparison's, there."""

    position: int
    kl_divergence: float


@dataclass(frozen=True)
class Comparison:
    """One engine beside a reference.

    kl_divergence: KL(reference ‖ ours) in nats, mean over the scored positions. agreement: the share of positions where
    both have the same likeliest token. worst: the places of the largest divergence, the largest first.
    """

    ours: Perplexity
    reference: Perplexity
    kl_divergence: float
    agreement: float
    worst: tuple[ScoredToken, ...]

    @property
    def ratio(self) -> float:
        """Perplexity over the reference's: above 1 is worse."""
        return self.ours.perplexity / self.reference.perplexity


def perplexity(
    engine: Engine, tokens: Sequence[int], window: int, stride: int, progress: Progress | None = None
) -> Perplexity:
    """Perplexity of the engine's model on at least two tokens. The engine's max_length must be `window` or more."""
    reader = _Reader(engine, tokens)
    for span in _watched(tokens, window, stride, progress):
        reader.read(span)
    return reader.result()


def compare(
    engine: Engine, reference: Engine, tokens: Sequence[int], window: int, stride: int, progress: Progress | None = None
) -> Comparison:
    """Compute the perplexity of both, and how far their probabilities are apart, window by window."""
    ours, theirs = _Reader(engine, tokens), _Reader(reference, tokens)
    places: list[ScoredToken] = []
    num_equal, divergence = 0, 0.0
    for span in _watched(tokens, window, stride, progress):
        reference_RV, logits_RV = theirs.read(span), ours.read(span)
        num_equal += int((reference_RV.argmax(-1) == logits_RV.argmax(-1)).sum())
        kl_R = _kl(reference_RV, logits_RV)
        divergence += float(kl_R.sum(dtype=torch.float64))
        places += [ScoredToken(span.first + row, found) for row, found in enumerate(kl_R.tolist())]
    result = ours.result()
    worst = nlargest(NUM_WORST, places, key=lambda place: place.kl_divergence)
    share = num_equal / result.num_scored
    return Comparison(result, theirs.result(), divergence / result.num_scored, share, tuple(worst))


def _watched(tokens: Sequence[int], window: int, stride: int, progress: Progress | None) -> Iterator[ScoredWindow]:
    progress = progress or Silent()
    spans = list(windows(len(tokens), window, stride))
    assert spans, "two tokens are needed"
    for done, span in enumerate(spans):
        progress.advance(done, len(spans))
        yield span
    progress.advance(len(spans), len(spans))


class _Reader:
    """One engine and its sums over the windows read so far."""

    def __init__(self, engine: Engine, tokens: Sequence[int]) -> None:
        self._engine, self._tokens = engine, tokens
        self._num_scored = self._num_windows = 0
        self._nll = self._elapsed_s = 0.0

    def read(self, span: ScoredWindow) -> Tensor:
        """Score one window, and return the logits [R, V] before each of its R scored tokens."""
        started_s = time.perf_counter()
        logits_TV = self._engine.logits(self._tokens[span.start : span.end])
        logits_RV = logits_TV[span.first - span.start - 1 : -1]
        targets_R = torch.tensor(self._tokens[span.first : span.end])
        nll = _nll_sum(logits_RV, targets_R)
        if not math.isfinite(nll):
            dtype = self._engine.config.dtype
            raise RequestError(
                f"the negative log-likelihood of tokens {span.first} to {span.end - 1} is {nll}: the logits overflow "
                f"in dtype {dtype}; {overflow_remedy(dtype)}"
            )
        self._nll += nll
        self._num_scored += len(targets_R)
        self._num_windows += 1
        self._elapsed_s += time.perf_counter() - started_s
        return logits_RV

    def result(self) -> Perplexity:
        return Perplexity(len(self._tokens), self._num_scored, self._num_windows, self._nll, self._elapsed_s)


def _nll_sum(logits_RV: Tensor, targets_R: Tensor) -> float:
    """Sum the negative log-likelihoods: each token in float32, their sum in float64."""

    def of_rows(places_P: Tensor) -> Tensor:
        return log_probability_of(logits_RV[places_P].float(), torch.arange(len(places_P)), targets_R[places_P])

    return -_of_rows(of_rows, len(targets_R)).sum(dtype=torch.float64).item()


def _kl(reference_RV: Tensor, logits_RV: Tensor) -> Tensor:
    def of_rows(places_P: Tensor) -> Tensor:
        p_PV, q_PV = (F.log_softmax(each[places_P].float(), dim=-1) for each in (reference_RV, logits_RV))
        return (p_PV.exp() * (p_PV - q_PV)).sum(-1, dtype=torch.float64)

    return _of_rows(of_rows, len(logits_RV))


def _of_rows(function: Callable[[Tensor], Tensor], num_rows: int) -> Tensor:
    """Join the numbers, one per row, that a function computes from the indices of a few rows at a time: the logits of
    these rows fit into the caches of one core.
    """

    def of_share(places_S: Tensor) -> list[Tensor]:
        return [function(places_P) for places_P in torch.split(places_S, CHUNK_ROWS)]

    return torch.cat([part for share in over_rows(of_share, torch.arange(num_rows)) for part in share])
