"""The draft model's sequences, each of which follows a sequence of the engine; the check that both vocabularies are
equal.

Before a sequence drafts, it follows its text: tokens that were not accepted are cut, new ones are appended. Rows that
are already computed stay, blocks are shared and given up by the same rules as the engine's, and the next tokens are
chosen with the same settings and the same random numbers. Where the two models agree on the probabilities, they agree
on the token at any temperature.
"""

import logging
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from tokenmill.engine.core import Core
from tokenmill.errors import ConfigError
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig
from tokenmill.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(eq=False)
class FollowedText:
    """The draft model's sequence of one text, from the text's token `first` on. given: the text's Choosing when the
    sequence last followed it.
    """

    sequence: Sequence
    given: Choosing | None = None
    first: int = 0
    num_known: int = 0  # tokens of the text when the sequence last followed it

    def num_alike(self, tokens: List[int]) -> int:
        """Count the tokens at the beginning that both have."""
        own, known = self.sequence.tokens, min(self.num_known, len(tokens), len(self.sequence.tokens))
        alike = known if own[:known] == tokens[:known] else 0
        while alike < min(len(own), len(tokens)) and own[alike] == tokens[alike]:
            alike += 1
        return alike


class DraftCore:
    """The draft model with its own loop. It is called from the engine's loop alone."""

    kind = FollowedText
    few_pending = 2  # more tokens of a text than that are missed ones

    def __init__(self, core: Core) -> None:
        self._core = core
        self._followers: WeakKeyDictionary[Sequence, FollowedText] = WeakKeyDictionary()
        self.has_caught_up = self.is_behind = self._has_failed = False

    def continuations(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Draft at most `limit` tokens for each text, by its id; a text that the model cannot take gets no drafts.

        A text gets no drafts while the draft model is still prefilling it, or has no free blocks for it. Each call
        makes at most one step of such a prefill, so that no text waits until the whole prompt of another is computed.
        """
        core = self._core
        following = [(text, own) for text in sequences if (own := self._follow(text, limit)) is not None]
        self.has_caught_up = any(own.num_pending_tokens > self.few_pending for _, own in following)
        queued = sorted((own for _, own in following), key=lambda own: own.num_pending_tokens)
        computed = {own.id: own.kept.num_computed for own in queued}
        for own in queued:
            core.enqueue(own)
        behind: list[Sequence] = []
        while queued:
            core.step()
            behind += [own for own in queued if own.finish_reason is None and own.num_pending_tokens > 1]
            for own in behind:
                core.scheduler.park(own)  # which ends it for now
            queued = [own for own in queued if own.finish_reason is None]
        self.is_behind = any(own.kept.num_computed > computed[own.id] for own in behind)
        if any(own.finish_reason == "error" for _, own in following):
            self._warn_of_failure()
        return {text.id: own.tokens[len(text.tokens) - self._followers[text].first :] for text, own in following}

    def _warn_of_failure(self) -> None:
        """Warn once. `_follow` leaves out a text whose follower has failed."""
        if not self._has_failed:
            what = "logits that are no numbers, or no finite logit of a token that may come"
            name = self._core.loaded.config.model
            log.warning("%s, the draft model, has computed %s; texts go on without it", name, what)
        self._has_failed = True

    @property
    def num_bytes(self) -> int:
        """Add up the memory of the draft model's weights, cache and scratch."""
        memory = self._core.loaded.memory
        return memory["weights_bytes"] + memory["cache_bytes"] + memory.get("scratch_bytes", 0)

    def close(self) -> None:
        """Release the draft model's memory."""
        self._core.close()

    def _follow(self, text: Sequence, limit: int) -> Sequence | None:
        """Give the text's follower the same tokens and settings, to be continued by at most `limit` tokens."""
        core, loaded = self._core, self._core.loaded
        length = min(len(text.tokens) + limit, text.max_tokens, loaded.resolved.longest_text)
        if length <= len(text.tokens):
            return None
        follower = self._followers.get(text) or self._new_follower(text)
        if follower.sequence.finish_reason == "error":
            return None
        own, alike = follower.sequence, follower.num_alike(text.tokens)
        if max(text.tokens[alike:], default=0) >= loaded.model_config.vocab_size:
            return None
        if alike < len(own.tokens) or alike < len(text.tokens):
            core.scheduler.rewind(own, alike, text.tokens[alike:])
        if follower.given is not text.choosing:  # the follower's rows report no log-probabilities
            own.choosing = replace(text.choosing, params=replace(text.choosing.params, logprobs=None))
            follower.given = text.choosing
        own.num_prompt_tokens, own.max_tokens = text.num_prompt_tokens, length
        own.client, own.priority = text.client, text.priority
        follower.num_known = len(text.tokens)
        return own

    def _new_follower(self, text: Sequence) -> FollowedText:
        core, own = self._core, self._core.inputs.kept([])
        core.release_with(text, own)
        own.kept.salt = text.kept.salt
        core.scheduler.park(own)
        self._followers[text] = follower = self.kind(own)
        return follower


def beside(config: ResolvedConfig, **own: Any) -> EngineConfig:
    """Make the settings of a draft model. config: the target model's settings, of which the draft model takes the
    device, the threads and the number of texts. own: the draft model's other settings.
    """
    return EngineConfig(
        device=config.device,
        threads=config.threads,
        max_sequences=config.max_sequences,
        max_step_tokens=config.max_step_tokens,
        fingerprint=config.fingerprint,
        **own,
    )


def check_vocabulary(name: str, draft: Tokenizer | None, target: Tokenizer | None, sizes: tuple[int, int]) -> None:
    """Raise ConfigError unless both models have equal tokens; without a tokenizer, `sizes` of both are compared."""
    if draft is None or target is None:
        if sizes[0] != sizes[1]:
            allowed = f"a model with the same vocabulary: its own has {sizes[0]} tokens, this model's {sizes[1]}"
            raise ConfigError("draft_model", name, allowed)
        return
    theirs, ours = draft.spellings, target.spellings
    if differing := [number for number in {**ours, **theirs} if theirs.get(number) != ours.get(number)]:
        number = min(differing)
        there, here = (repr(each[number]) if number in each else "missing" for each in (theirs, ours))
        allowed = f"a model with the same vocabulary: token {number} is {there} there and {here} here"
        raise ConfigError("draft_model", name, allowed)
