"""Input processing: prompts and settings are checked before they are queued, and made into sequences.

No prompt is cut and no setting corrected silently. What cannot be served is refused; the message says by how much, and
which setting to change.
"""

import logging
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import asdict, replace
from functools import cached_property
from hashlib import sha3_512, sha512
from itertools import count
from types import MappingProxyType
from typing import Any

from tokenmill.engine.requests import Prompt, token_ids
from tokenmill.errors import AS_IDS, NO_HEAD, ConfigError, RequestError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.registry import GRAMMARS, lookup
from tokenmill.sample.dry import dry_breakers
from tokenmill.sample.matchers import check_resumed
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import DEFAULT_MAX_NEW_TOKENS, SamplingParams, params_over
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.literal import encode_chat, unread_variables
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import ValueReader, brief

log = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = MappingProxyType({})
MIN_REPLAYED = 64  # tokens: more than one character has, which the last tokens may have begun
TEMPLATE_OWN = ("messages", "tokenizer", "template", "special_texts", "mark", "allow_special")
HOW_IT_ENDS = ("add_generation_prompt", "continue_final_message")
PARTS = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}
"""The key of a message part's text, by the part's type; the last two types are from OpenAI's responses API."""
WITHOUT_CONTENT = ("assistant", "function")  # roles whose content OpenAI's API allows to be null


class InputProcessor:
    """The processor that turns prompts into the sequences of one model, and gives each sequence an id."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._name, self._max_length = loaded.config.model, loaded.config.max_length
        self._room, self._cache_limit = loaded.resolved.longest_text, loaded.resolved.cache_limit
        model, self._tokenizer = loaded.model_config, loaded.tokenizer
        self._vocab_size, self._context, self._has_head = model.vocab_size, model.context, model.has_head
        self.defaults = loaded.generation_defaults  # sampling settings that the model's files recommend
        known = self._tokenizer.eos_token_ids if self._tokenizer is not None else ()
        ends = dict.fromkeys((*known, *model.eos_token_ids), "eos")
        self._eos = {number: reason for number, reason in ends.items() if 0 <= number < model.vocab_size}
        if absent := sorted(ends.keys() - self._eos.keys()):
            absent_ids, last = ", ".join(map(str, absent)), model.vocab_size - 1
            message = "%s: end-of-text id %s is ignored, because this model's ids are 0 to %d"
            log.warning(message, self._name, absent_ids, last)
        ids = self._tokenizer.suppressed_ids if self._tokenizer is not None else ()
        self._suppressed = {number: -math.inf for number in ids if number < model.vocab_size}
        self._ids = count(1)

    @cached_property
    def constraints(self) -> Any:
        """Make the maker of constraints for this model's texts; it is imported when a text first has a constraint."""
        return lookup(GRAMMARS, "llguidance", "constraint")(self._tokenizer, self._vocab_size, self._eos)

    def params(self, settings: Mapping[str, Any], given: SamplingParams | None = None) -> SamplingParams:
        """Make the sampling settings of a request: `settings` override the `given` ones, or else the model's own."""
        if given is not None and not isinstance(given, SamplingParams):
            raise ConfigError("params", given, "a SamplingParams; single settings are keywords")
        return params_over(self.defaults if given is None else asdict(given), settings)

    def encode(self, prompt: Prompt, add_special_tokens: bool = True, *, after: List[int] = ()) -> list[int]:
        if isinstance(prompt, str):
            tokenizer = self._need_tokenizer()
            tokens = tokenizer.encode(prompt, add_special_tokens and not after, continues=tokenizer.is_text(after))
        else:
            tokens = token_ids(prompt)
        if not tokens:
            raise RequestError("the prompt is empty: give at least one token of text")
        self._check_ids(tokens)
        return tokens

    @property
    def document_start(self) -> int | None:
        """Find the token that begins a text, or stands between texts; None if the model does not name one."""
        tokenizer = self._tokenizer
        known = () if tokenizer is None else (tokenizer.bos_token_id, *tokenizer.eos_token_ids)
        usable = (number for number in (*known, *self._eos) if number is not None and number < self._vocab_size)
        return next(usable, None)

    def chat_prompt(
        self, messages: List[Mapping[str, Any]], allow_special: bool = False, variables: Mapping[str, Any] = NOTHING
    ) -> list[int]:
        if not isinstance(messages, list | tuple) or not messages:
            raise RequestError(f"{brief(messages)} is no conversation: give a list of messages with role and content")
        texts = [
            plain_message(message, f"message {number} of the chat") for number, message in enumerate(messages, start=1)
        ]
        if wrong := [name for name in variables if name in TEMPLATE_OWN]:
            raise RequestError(f"{wrong[0]} is no variable of a chat template that a request may set")
        if variables.get("continue_final_message") and variables.get("add_generation_prompt", True):
            why = "only with add_generation_prompt false, since the last message is left open and no answer begun"
            raise ConfigError("continue_final_message", True, why)
        if not self._has_head and (self._tokenizer is None or self._tokenizer.template_for(None) is None):
            raise RequestError(NO_HEAD)
        if self._tokenizer is None:
            raise RequestError(f"this model has no tokenizer, so it has no conversations: {AS_IDS}")
        tokens = encode_chat(self._tokenizer, texts, allow_special=allow_special, **variables)
        if not tokens:
            raise RequestError("this model's chat template makes an empty text of these messages")
        return tokens

    def unread_variables(self, variables: Mapping[str, Any]) -> list[str]:
        """Name the variables, such as `tools`, that this model's chat template does not read: they change nothing."""
        return unread_variables(self._need_tokenizer(), {k: v for k, v in variables.items() if k not in HOW_IT_ENDS})

    def sequences(
        self,
        tokens: list[int],
        params: SamplingParams,
        priority: int = 0,
        salt: bytes = b"",
        constrained_from: int | None = None,
        adapter: Any = None,
    ) -> Iterator[Sequence]:
        """Make the n continuations of a prompt. priority: see Sequence; salt, adapter: see Kept."""
        max_tokens = self._max_tokens(len(tokens), params)
        if params.stop and self._tokenizer is None:
            raise RequestError("stop texts need a tokenizer: use stop_token_ids with this model")
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            self._check_ids(getattr(params, name) or (), name)
        if self._suppressed:  # as a setting of the sequence, so that whatever depends on its settings knows of them
            params = replace(params, logit_bias={**params.logit_bias, **self._suppressed})
        stops = self._stop_ids(params)
        seed = secrets.randbelow(2**32) if params.seed is None else params.seed
        start = len(tokens) if constrained_from is None else constrained_from
        words, breakers = self._bad_words(params.bad_words), dry_breakers(self._tokenizer, params)
        choosing = Choosing(params, seed, stops, None, words, breakers, constrained_from=start)
        if not params.is_constrained_as(SamplingParams()):
            choosing = self.constraints.constrained(choosing, tokens, start)
        for number in range(params.n):
            each = replace(choosing, seed=(seed + number) % 2**63)
            prompt, kept = (next(self._ids), list(tokens), len(tokens)), _kept(salt, adapter)
            yield Sequence(*prompt, max_tokens, each, kept, priority=priority)

    def resume(self, sequences: List[Sequence], emitted: List[List[int]]) -> None:
        """Append to each sequence the tokens that were generated of it before, see Core.request. RequestError for
        tokens that no engine can have generated: of unknown ids, or after an end.
        """
        if len(emitted) != len(sequences):
            message = f"emitted: token ids of {len(emitted)} continuations, but this request has {len(sequences)}"
            raise RequestError(message, "emitted")
        for sequence, given in zip(sequences, emitted, strict=True):
            tokens = token_ids(given, "value of `emitted`: that is a list of token ids for each continuation")
            self._check_ids(tokens, "emitted")
            params = sequence.choosing.params
            if tokens and params.seed is None and params.temperature > 0:
                raise RequestError("emitted: a request is resumed with the seed of its completions: give it", "seed")
            sequence.tokens += self._possible(sequence, tokens)
            check_resumed(sequence)

    def _possible(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        """Return the tokens; RequestError where a token before the last one ends the text."""
        num_left, stop_ids = sequence.max_tokens - len(sequence.tokens), sequence.choosing.stop_ids
        if len(tokens) > num_left:
            message = f"emitted: {len(tokens)} tokens of one continuation, which can have {num_left} at most"
            raise RequestError(message, "emitted")
        end = next((number for number, token in enumerate(tokens, 1) if token in stop_ids), len(tokens))
        if sequence.choosing.params.stop and (detokenizer := self.detokenizer(sequence)) is not None:
            detokenizer.push(tokens[:end])
            end = min(end, detokenizer.num_tokens_used)
        if end < len(tokens):
            message = f"emitted: token {end} of {len(tokens)} ends the text, so no token can have come after it"
            raise RequestError(message, "emitted")
        return tokens

    def kept(
        self, tokens: list[int], score_from: int | None = None, salt: bytes = b"", adapter: Any = None
    ) -> Sequence:
        """Make a sequence that is kept after its end, to be rewound and resumed. score_from: see Sequence."""
        self.check_length(len(tokens))
        prompt = next(self._ids), tokens, len(tokens)
        return Sequence(*prompt, len(tokens), kept=_kept(salt, adapter), score_from=score_from, keep=True)

    def _stop_ids(self, params: SamplingParams) -> dict[int, str]:
        """Map each token that ends a text to its finish reason."""
        own = {} if params.ignore_eos else self._eos
        return own | dict.fromkeys(params.stop_token_ids, "stop")

    def detokenizer(self, sequence: Sequence) -> Detokenizer | None:
        """Make a detokenizer for the tokens that follow the prompt of a sequence; None without a tokenizer.

        Where they continue a text, it shows first the text that the earlier tokens have held back.
        """
        if self._tokenizer is None:
            return None
        params, earlier = sequence.choosing.params, sequence.earlier
        prompt = sequence.tokens[: sequence.num_prompt_tokens]
        found = self._detokenizer(params, prompt) if earlier is None else self._replayed(params, prompt, *earlier)
        found.go_on(stop=params.stop, include_stop=params.include_stop, min_tokens=params.min_new_tokens)
        return found

    def _replayed(self, params: SamplingParams, tokens: list[int], start: int, before: SamplingParams) -> Detokenizer:
        """Make a detokenizer and push the tokens from `start` on, which were chosen with the settings `before`.

        The last ones are enough, since no more can be held back. A text that has ended among them holds nothing back.
        """
        longest = max(map(len, before.stop), default=0)
        start, stop_ids = max(start, len(tokens) - MIN_REPLAYED - 4 * longest), self._stop_ids(before)
        shows = {name: getattr(params, name) for name in ("skip_special_tokens", "shown_token_ids")}
        settings = replace(before, **shows)
        found = self._detokenizer(settings, tokens[:start])
        for place, token in enumerate(tokens[start:], start + 1):
            found.push([token])
            if token in stop_ids or found.stopped is not None:
                found = self._detokenizer(settings, tokens[:place])
        return found

    def _detokenizer(self, params: SamplingParams, prompt: list[int]) -> Detokenizer:
        skips, shown = params.skip_special_tokens, params.shown_token_ids
        return Detokenizer(self._need_tokenizer(), stop=params.stop, prompt=prompt, skip_special=skips, shown=shown)

    def check_length(self, num_tokens: int) -> None:
        """Raise RequestError for more tokens than max_length."""
        if num_tokens > self._max_length:
            raise RequestError(
                f"{num_tokens} tokens are over max_length of {self._max_length}: shorten the text "
                f"({self._remedy(num_tokens)})"
            )

    def _remedy(self, num_tokens: int) -> str:
        """Say what else would help a text of so many tokens, without advice that the model would refuse."""
        if num_tokens <= self._context:
            return f"or raise max_length{' and cache_tokens' * (num_tokens > self._cache_limit)} to {num_tokens}"
        if self._max_length >= self._context:
            return "this is the model's own context"
        return f"the model's own context is {self._context}"

    def _max_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        """Compute the length at which the sequence ends: max_new_tokens after the prompt, or the default that fits."""
        max_length, wanted, min_new = self._max_length, params.max_new_tokens, max(params.min_new_tokens, 1)
        if wanted == -1:
            wanted = max(self._room - num_prompt, min_new)
        num_new = wanted or max(DEFAULT_MAX_NEW_TOKENS, min_new)
        if num_prompt + (wanted or min_new) > max_length:
            remedy = self._remedy(num_prompt + (wanted or min_new))
            if num_prompt >= max_length:
                raise RequestError(
                    f"the prompt has {num_prompt} tokens, and with max_length of {max_length} not one more fits: "
                    f"shorten the prompt ({remedy})"
                )
            raise RequestError(
                f"prompt of {num_prompt} tokens + max_new_tokens of {num_new} is over max_length of {max_length}: "
                f"shorten the prompt or lower max_new_tokens ({remedy})"
            )
        return min(num_prompt + num_new, max_length)

    def _bad_words(self, words: List[str]) -> tuple[tuple[int, ...], ...]:
        """Encode each word as it is written alone and after a space."""
        if not words:
            return ()
        if self._tokenizer is None:
            raise ConfigError("bad_words", list(words), "none, because this model has no tokenizer")
        spelled: dict[tuple[int, ...], None] = {}
        for word in words:
            if not (stripped := word.lstrip()):
                raise ConfigError("bad_words", word, "a word, not spaces alone")
            for text in (stripped, f" {stripped}"):
                ids = tuple(self._tokenizer.encode(text, add_special_tokens=False, continues=True))
                if ids and max(ids) < self._vocab_size:  # tokens beyond the vocabulary are never drawn
                    spelled[ids] = None
        return tuple(spelled)

    def _check_ids(self, tokens: Iterable[int], setting: str | None = None) -> None:
        """Raise RequestError for ids that the model does not have, in a prompt or in a setting."""
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                last, where = self._vocab_size - 1, f"{setting}: " if setting else ""
                message = f"{where}token id {token} is out of range: this model's ids are 0 to {last}"
                raise RequestError(message, setting)

    def _need_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RequestError(f"this model has no tokenizer: {AS_IDS}")
        return self._tokenizer


def _kept(salt: bytes, adapter: Any) -> Kept:
    """Make the record of a new text. The start of its block digests is longer than they are, so that no salt equals
    another block's; with an adapter another hash makes it, so that no salt of a request equals it.
    """
    if adapter is not None:
        return Kept(salt=sha3_512(adapter.digest + salt).digest(), adapter=adapter)
    return Kept(salt=sha512(salt).digest() if salt else b"")


def plain_message(message: Any, where: str) -> Mapping[str, Any]:
    """Check one chat message. Parts, which OpenAI's API has as a list, are joined by newlines, as in vLLM."""
    reader = ValueReader(message, where, RequestError)
    role, content = reader.text("role"), reader.values.get("content")
    if isinstance(content, list):
        parts = [ValueReader(part, f"{where}: part {number}", RequestError) for number, part in enumerate(content, 1)]
        texts = [part.text(PARTS[part.expect("type", ..., *PARTS)], longest=math.inf) for part in parts]
        return {**reader.values, "content": "\n".join(texts)}
    if content is not None or not (role in WITHOUT_CONTENT or reader.values.get("tool_calls")):
        reader.text("content", longest=math.inf)
    return reader.values
