"""An engine as lm-evaluation-harness sees a model: log-probabilities, windows, texts; a task's `generation_kwargs` as
sampling settings, with a seed for each request.

Token ids, windows, truncation and stop texts are the same as in the harness' own model "hf", so that the figures are
the same for the same weights. What differs is how they are computed: contexts that requests share once, many requests
in flight.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from tokenmill.engine.batch import generate_each, score_each
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load
from tokenmill.engine.outputs import hash_tokens
from tokenmill.errors import ConfigError, RequestError
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Progress
from tokenmill.loader.fit import fit_for_many
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.literal import chat_text
from tokenmill.weights.checkpoint import open_checkpoint

log = logging.getLogger(__name__)
SEED = 1234  # the harness' own default of most seeds
Requests = list[tuple[tuple[str, str] | None, list[int], list[int]]]


MAX_NEW_TOKENS = 256  # the harness' own default
SAMPLING = {name: told.stage for name, told in settings_of(SamplingParams).items() if told.stage}
WITHOUT_EFFECT: Mapping[str, Any] = {
    "num_beams": 1,
    "use_cache": True,
    "num_return_sequences": 1,
    "early_stopping": False,
}


@dataclass(frozen=True)
class GenerationSettings:
    """The `generation_kwargs` of a task as sampling settings. stop: texts that end a text. sampling: more fields of
    SamplingParams. seed: the task's own, if it has one.
    """

    stop: tuple[str, ...]
    max_new_tokens: int
    sampling: Mapping[str, Any]
    seed: int | None

    def params(self, seed: int, context: str, repetition: int) -> SamplingParams:
        """Make the settings of one request. Its seed follows from its own text alone, not from other requests."""
        start = seed if self.seed is None else self.seed
        digest = sha256(f"{start}:{repetition}:{context}".encode("utf-8", "surrogatepass")).digest()
        own = int.from_bytes(digest[:8], "big") >> 1
        return SamplingParams(max_new_tokens=self.max_new_tokens, stop=self.stop, seed=own, **self.sampling)


def read_settings(given: Mapping[str, Any]) -> GenerationSettings:
    """Read a task's settings. ConfigError for a setting that the engine does not have: no setting is left out."""
    wanted = dict(normalize_gen_kwargs(dict(given), MAX_NEW_TOKENS))
    stops = tuple(dict.fromkeys(text for text in wanted.pop("until") if text))
    max_new_tokens, seed = wanted.pop("max_gen_toks"), wanted.pop("seed", None)
    is_sampled = wanted.pop("do_sample", False)
    sampling = {name: wanted.pop(name) for name in SAMPLING if name in wanted}
    for name, value in wanted.items():
        if name not in WITHOUT_EFFECT or WITHOUT_EFFECT[name] != value:
            allowed = f"until, max_gen_toks, do_sample, seed, {', '.join(SAMPLING)}"
            raise ConfigError(f"generation_kwargs: {name}", value, f"there are {allowed}")
    if not is_sampled:
        sampling = {name: value for name, value in sampling.items() if SAMPLING[name] != "draw"} | {"temperature": 0.0}
    return GenerationSettings(stops, max_new_tokens, sampling, seed)


@register_model("tokenmill")
class TokenmillLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types that mypy could read
    """A model for the harness. pretrained: the name of a model, or an engine that is loaded already.

    batch_size: sequences in flight; "auto" is by memory and processors. seed: where a task samples; each request has a
    seed of its own, made of this, its context and its repetition. prefix_token_id: what stands before a text that has
    no context (default: the tokenizer's bos token, else its eos token). add_bos_token: whether texts are encoded with
    special tokens (default: as the tokenizer does). settings: fields of EngineConfig.
    """

    def __init__(
        self,
        pretrained: str | Engine = DEFAULT_MODEL,
        *,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        seed: int = SEED,
        prefix_token_id: int | None = None,
        add_bos_token: bool | None = None,
        progress: Progress | None = None,
        device: str = "auto",
        **settings: Any,
    ) -> None:
        super().__init__()
        if not isinstance(pretrained, Engine):
            pretrained = _load(pretrained, batch_size, max_batch_size, {**settings, "device": _there(device)})
        self.engine = pretrained
        if (tokenizer := self.engine.tokenizer) is None:
            raise RequestError(f"{self.engine.config.model} has no tokenizer, which tasks need: their data is text")
        self.tokenizer = tokenizer
        self.generated: dict[str, str] = {}
        self._seed, self._prefix, self._add_bos = seed, prefix_token_id, add_bos_token
        self._progress = progress or _TqdmProgress()

    # ---- tokens

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's own end-of-text token."""
        if not self.tokenizer.eos_token_ids:
            raise RequestError(
                f"{self.engine.config.model} has no token that begins or ends a text, and this task needs one before "
                "each text; TokenmillLM(prefix_token_id=…) names another"
            )
        return self.tokenizer.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        found = self.tokenizer.bos_token_id if self._prefix is None else self._prefix
        return self.eot_token_id if found is None else found

    @property
    def max_length(self) -> int:
        """Tokens that are fed at most."""
        return self.engine.config.max_length

    @property
    def tokenizer_name(self) -> str:
        """The name by which the harness keeps built requests apart."""
        return self.engine.config.model.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encode a text, by default with special tokens, unless it begins with the prefix token as a text."""
        if add_special_tokens is None:
            add_special_tokens = not self._has_prefix(string) and self._add_bos is not False
        return self.tokenizer.encode(string, add_special_tokens)

    def _has_prefix(self, string: str) -> bool:
        known = (self._prefix, self.tokenizer.bos_token_id, *self.tokenizer.eos_token_ids)
        prefix = next((each for each in known if each is not None), None)
        text = "" if prefix is None else self.tokenizer.decode([prefix], skip_special=False)
        return bool(text) and string.startswith(text)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Write a conversation by the model's chat template, with an open last message if no answer is to begin."""

        def rendered(messages: list[dict[str, str]]) -> str:
            how = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
            return chat_text(self.tokenizer, messages, **how)

        try:
            return rendered(chat_history)
        except RequestError as error:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history) or self.tokenizer.chat_template is None:
                raise
            log.warning("%s; without the system message", error)
            return rendered(others)

    # ---- log-probabilities

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Compute the log-probability of each continuation after its context, and whether greedy sampling says it."""
        self._progress.stage(f"scoring {len(requests):,} continuations")
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def _loglikelihood_tokens(self, requests: Requests, **_: Any) -> list[tuple[float, bool]]:
        pairs = [self._fitted(each) for each in requests]
        answers: dict[int, tuple[float, bool]] = {}
        for number, score in score_each(self.engine.core, pairs):
            answers[number] = answer = (score.logprob, score.is_greedy)
            if (key := requests[number][0]) is not None:
                self.cache_hook.add_partial("loglikelihood", key, answer)
            self._progress.advance(len(answers), len(pairs))
        return [answers[number] for number in range(len(pairs))]

    def _fitted(self, request: tuple[tuple[str, str] | None, list[int], list[int]]) -> tuple[list[int], list[int]]:
        """Cut context and continuation from the left to what can be fed: all tokens but the last."""
        key, context, continuation = request
        what = "a window" if key is None else repr(key[1])[:80]
        if not continuation:
            raise RequestError(f"the continuation {what} adds no token to its context")
        if len(continuation) > self.max_length:
            raise RequestError(
                f"the continuation {what} has {len(continuation)} tokens, over max_length of {self.max_length}"
            )
        over = len(context) + len(continuation) - (self.max_length + 1)
        if over > 0:
            message = "a request of %d tokens is cut by %d from the left: max_length is %d"
            log.warning(message, len(context) + len(continuation), over, self.max_length)
        return context[max(over, 0) :], continuation

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Compute the log-probability of each text, of longer ones in windows that do not overlap."""
        self._progress.stage(f"reading {len(requests):,} texts")
        windows: Requests = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            if tokens:
                found = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
                windows += [(None, *make_disjoint_window(pair)) for pair in found]
            owners += [number] * (len(windows) - len(owners))
        self._say_windows(owners)
        totals = [0.0] * len(requests)
        for number, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _say_windows(self, owners: list[int]) -> None:
        context, longer = self.engine.model_config.context, sum(1 for count in Counter(owners).values() if count > 1)
        if longer and self.max_length < context:
            message = "%d texts are longer than max_length of %d and read in windows; the model's context is %d"
            log.warning(message, longer, self.max_length, context)

    # ---- texts

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue each context, up to a stop text."""
        self._progress.stage(f"continuing {len(requests):,} texts")
        wanted = [read_settings(request.args[1]) for request in requests]
        core, times, queue = self.engine.core, Counter[str](), []
        for request, settings in zip(requests, wanted, strict=True):
            context = request.args[0]
            key = repr(request.args)  # a task may ask for several continuations of one context
            params = settings.params(self._seed, context, times[key])
            queue.append(core.request(self._context(context, settings), params))
            times[key] += 1
        ends = [self.tokenizer.decode([number], skip_special=False) for number in self.tokenizer.eos_token_ids[:1]]
        texts: dict[int, str] = {}
        tokens: dict[int, tuple[int, ...]] = {}
        for number, done in generate_each(core, queue):
            said = done.tokens[:-1] if done.finish_reason == "eos" else done.tokens
            text = postprocess_generated_text(self.tokenizer.decode(said), [*wanted[number].stop, *ends], None)
            texts[number], tokens[number] = text, done.tokens
            self.cache_hook.add_partial("generate_until", requests[number].args, text)
            self._progress.advance(len(texts), len(requests))
        self._note_hashes(requests, tokens)
        return [texts[number] for number in range(len(requests))]

    def _context(self, text: str, settings: GenerationSettings) -> list[int]:
        """Encode a context, cut from the left so that what is asked for fits after it."""
        most, tokens = self.max_length - settings.max_new_tokens, self.tok_encode(text) or [self.prefix_token_id]
        if most < 1:
            raise RequestError(
                f"a task asks for {settings.max_new_tokens} new tokens (max_gen_toks), which leaves nothing of "
                f"max_length of {self.max_length} for its context"
            )
        if len(tokens) > most:
            message = "a context of %d tokens is cut to its last %d, since %d new ones follow and max_length is %d"
            log.warning(message, len(tokens), most, settings.max_new_tokens, self.max_length)
        return tokens[-most:]

    def _note_hashes(self, requests: list[Instance], tokens: Mapping[int, Sequence[int]]) -> None:
        by_task: dict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            by_task[request.task_name or ""] += tokens[number]
        self.generated |= {name: hash_tokens(ids) for name, ids in by_task.items()}

    # ---- what it is

    def get_model_info(self) -> dict[str, Any]:
        """Return the facts that the harness adds to the `config` of its results."""
        engine = self.engine
        named = {"program": engine.program_name, "dtype": engine.config.dtype, "scheme": engine.config.scheme}
        return {**named, "max_length": self.max_length, "fingerprint": dict(engine.fingerprint)}


def _there(device: str) -> str:
    """Find the device. The harness says cuda unless it is told otherwise, so without CUDA that is auto."""
    if not device.startswith("cuda") or torch.cuda.is_available():
        return device
    log.warning("device %s: this machine has no CUDA device, so it is auto", device)
    return "auto"


def _load(name: str, batch_size: int | str, max_batch_size: int | None, settings: Mapping[str, Any]) -> Engine:
    config = EngineConfig(model=name, **settings)
    if str(batch_size).startswith("auto"):
        number = settings.get("max_sequences", max_batch_size)
    elif not str(batch_size).isdecimal():
        raise ConfigError("batch_size", batch_size, "a whole number, or auto")
    else:
        number = int(batch_size)
    return load(fit_for_many(config, read_config(open_checkpoint(locate(name)).config), number))


class _TqdmProgress(Progress):
    """A bar as other models of the harness have it."""

    def __init__(self) -> None:
        self._text = ""
        self._bar: Any = None

    def stage(self, text: str) -> None:
        self._text = text

    def advance(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = tqdm(total=total, desc=self._text)
        self._bar.update(done - self._bar.n)
        if done == total:
            self._bar.close()
            self._bar = None
