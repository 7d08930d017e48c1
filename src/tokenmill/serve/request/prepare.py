"""An Ask becomes a request of the core: prompts are encoded, settings become SamplingParams, lengths are checked.

It may take milliseconds for long prompts, so it runs in a thread beside the event loop. Only requests of one tenant,
the client's key, and of one salt share rows of the cache.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from tokenmill.engine.core import Core
from tokenmill.engine.requests import Request
from tokenmill.engine.scoring import prompt_logprobs
from tokenmill.errors import ReceiptError, RequestError
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.http.errors import ApiError, TooLong, about
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.calling import Answer
from tokenmill.serve.request.constraints import about_constraint, constraint_warnings, told_of
from tokenmill.serve.request.prompt import conversation_prompt, ids_before, template_warnings, unknown_warnings
from tokenmill.serve.request.reading import Readers
from tokenmill.settings.recommended import default_settings
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.infill import Infill, infill_prompt, marks_of


@dataclass(frozen=True)
class Prepared:
    """A request that can be queued. prompts: the token ids of each.

    num_each, num_shown: continuations of each prompt that are made, and the number of the best that the client gets.
    prompt_logprobs: for each prompt, if the client wants its log-probabilities, what engine/scoring.prompt_logprobs
    returns: a sequence to run before the request, and the dict that it fills. only_prompts: the client wants no
    continuations. warnings: what the client said without effect. readers: of the parts of a text. is_clamped: the
    context leaves fewer tokens than were asked for.
    """

    request: Request
    prompts: list[list[int]]
    num_each: int
    num_shown: int
    prompt_logprobs: list[tuple[Sequence, dict[int, TokenLogprobs]]] = field(default_factory=list)
    only_prompts: bool = False
    warnings: list[str] = field(default_factory=list)
    readers: Readers = field(default_factory=Readers)
    is_clamped: bool = False


def prepare(core: Core, ask: Ask) -> Prepared:
    """Make the request; ApiError for what cannot be served."""
    if ask.infill is not None:
        return _prepared(core, ask, [_around(core, ask, ask.infill)], "prompt", Answer(), [])
    if ask.prompts:
        with about("prompt"):
            tokens = [_cut(core, ask, _encoded(core, ask, prompt)) for prompt in ask.prompts]
        return _prepared(core, ask, tokens, "prompt", Answer(), [])
    calling, found, warnings = conversation_prompt(core, ask)
    tokens = [_cut(core, ask, found)]
    answer = calling.answer(core.inputs, tokens[0], ask)
    return _prepared(core, ask, tokens, "messages", answer, [*warnings, *template_warnings(core, ask)])


def _around(core: Core, ask: Ask, infill: Infill) -> list[int]:
    """Return the prompt of a text that is filled in; with the marks that end it as stops."""
    tokenizer, wanted = core.loaded.tokenizer, ask.sampling.get("max_new_tokens")
    with about("prompt"):
        if tokenizer is None:
            raise RequestError("this model has no tokenizer, so it fills in nothing")
        limit = _limit(core)  # of which at least a quarter is for new tokens where not all fits
        num_new = limit // 4 if wanted is None or wanted < 0 else max(min(wanted, limit // 4), 1)
        tokens, is_cut = infill_prompt(tokenizer, infill, limit - num_new)
    if is_cut:
        ask.warn("what stands around the text is longer than the context, so it was cut: other files first")
    marks, given = marks_of(tokenizer), ask.sampling.get("stop_token_ids") or ()
    assert marks is not None, "they are in the prompt"
    ends = [number for number in marks.ends if number < core.loaded.model_config.vocab_size]
    ask.sampling["stop_token_ids"] = tuple(dict.fromkeys((*given, *ends)))
    ask.is_cut = is_cut
    return tokens


def _encoded(core: Core, ask: Ask, prompt: Any) -> list[int]:
    """Return the token ids of a prompt; for None, the beginning of a document. Texts may stand among ids."""
    if isinstance(prompt, list) and any(isinstance(part, str) for part in prompt):
        ids = list[int]()
        for part in prompt:
            ids += core.inputs.encode(part, ask.adds_special and not ids) if isinstance(part, str) else [part]
        return core.inputs.encode(ids)
    if ask.after:
        before = ids_before(core, ask)
        return [*before, *core.inputs.encode(prompt, ask.adds_special, after=before)]
    if prompt is not None:
        return core.inputs.encode(prompt, ask.adds_special)
    if (first := core.inputs.document_start) is None:
        raise RequestError("null is the beginning of a text, and this model names no token that begins one")
    return [first]


def _prepared(
    core: Core, ask: Ask, prompts: list[list[int]], field: str, answer: Answer, warnings: list[str]
) -> Prepared:
    """Make the request of encoded prompts. field: where the prompts come from. warnings: about these."""
    settings, constrained, max_tokens, only_prompts = _settings(core, ask, answer)
    salt, sequences = ask.cache_salt, list[Sequence]()
    for tokens in prompts:
        num_new = _clamped(core, len(tokens), field, max_tokens)
        _check_min_tokens(ask.sampling.get("min_new_tokens"), num_new, _limit(core) - len(tokens))
        with about_constraint(constrained):
            params = SamplingParams(**{**settings, "max_new_tokens": num_new})
            sequences += core.request(tokens, params, priority=ask.priority, salt=salt, adapter=ask.adapter).sequences
    if ask.wants_receipt:
        _read_model(core)
    if ask.shown_prompt_logprobs is not None and ask.stream:
        raise ApiError(400, "prompt_logprobs are not part of a stream: leave out one of the two", "prompt_logprobs")
    count = ask.num_prompt_logprobs
    shared = ask.priority, salt, core.adapter(ask.adapter)
    noted = [] if count is None else [prompt_logprobs(core, each, count, *shared) for each in prompts]
    for sequence in (*sequences, *(scored for scored, _ in noted)):
        sequence.client = ask.tenant
    told = (*answer.warnings, *told_of(constrained, sequences[0].choosing.constraint))
    said = [*unknown_warnings(ask.unknown), *ask.warnings, *constraint_warnings(ask.constraint, ask.sampling)]
    return Prepared(
        Request(sequences, core.loop.clock() + (inf if ask.timeout_s is None else ask.timeout_s)),
        prompts,
        params.n,
        ask.sampling.get("n") or 1,
        noted,
        only_prompts,
        [*said, *told, *warnings],
        answer.readers,
        is_clamped=max_tokens is not None and max_tokens > num_new,
    )


def _settings(core: Core, ask: Ask, answer: Answer) -> tuple[dict[str, Any], str, int | None, bool]:
    """Return the settings, the field that constrains the text, the tokens that are asked for, and whether no more than
    the prompts is wanted: then one token is computed and not shown.
    """
    max_tokens, best_of, n = ask.sampling.get("max_new_tokens"), ask.best_of, ask.sampling.get("n") or 1
    if only_prompts := (ask.echo or ask.only_prompts) and max_tokens == 0:
        max_tokens = 1
        if ask.wants_receipt:
            raise ApiError(400, "receipt needs a text: with echo, max_tokens = 0 gives none", "receipt")
    if best_of is not None and best_of < n:
        raise ApiError(400, f"best_of = {best_of} is not allowed: at least n, which is {n}", "best_of")
    if (best_of or 1) > 1 and ask.stream:
        raise ApiError(400, "best_of is not possible in a stream: the best is known at the end", "best_of")
    if max_tokens is not None and max_tokens < 1 and max_tokens != -1:
        message = f"max_tokens = {max_tokens} is not allowed: at least 1, or -1 for as many as fit"
        raise ApiError(400, message, "max_tokens")
    constrained, settled = ask.constraint if answer.constraint is None else answer.constraint
    own = {name: value for name, value in ask.sampling.items() if value is not None}
    if own.get("seed") == -1:  # any, also where the server has one
        del own["seed"]
    ranked = {} if (best_of or 1) == 1 else {"n": best_of, "logprobs": own.get("logprobs", 0)}
    shown = {"shown_token_ids": answer.shown_ids} if answer.shown_ids else {}
    settings = default_settings(core.inputs.defaults, ask.defaults) | own | ranked | shown | settled
    return settings, constrained, max_tokens, only_prompts


def _read_model(core: Core) -> None:
    """Read the model's files for the digests of receipts, here in a thread, unless they were read before."""
    try:
        assert core.receipts is not None, "a server has no draft model of its own"
        core.receipts.model  # noqa: B018
    except ReceiptError as error:
        raise ApiError(409, str(error), "receipt") from None


def _check_min_tokens(min_tokens: int | None, num_new: int, left: int) -> None:
    """Raise ApiError where the context leaves too few tokens. SamplingParams refuses a max_tokens that is too small."""
    if min_tokens is not None and min_tokens > num_new == left:
        message = f"min_tokens = {min_tokens} is not allowed: at most {left}, which the prompt leaves of the context"
        raise ApiError(400, message, "min_tokens")


def _limit(core: Core) -> int:
    """Return how many tokens a prompt and its continuation may have together."""
    return core.loaded.resolved.longest_text


def _clamped(core: Core, num_prompt: int, field: str, max_tokens: int | None) -> int:
    """Return the new tokens that are asked for, at most as many as fit."""
    left = _limit(core) - num_prompt
    if left < 1:
        raise TooLong(num_prompt, _limit(core), field)
    return left if max_tokens in (None, -1) else min(max_tokens, left)


def _cut(core: Core, ask: Ask, tokens: list[int]) -> list[int]:
    """Return the last tokens of a prompt, or the first: as many as are wanted; -1: all but one."""
    if (kept := ask.kept_tokens) is None:
        return tokens
    if kept == 0:
        raise ApiError(400, "truncate_prompt_tokens = 0 is not allowed: at least 1, or -1", "truncate_prompt_tokens")
    kept = kept if kept > 0 else max(1, _limit(core) - 1)
    return tokens[:kept] if ask.cuts_end else tokens[-kept:]
