"""Bodies of requests become requests of the core: prompts are encoded, fields become SamplingParams, lengths checked.

It may take milliseconds for long prompts, so it runs in a thread beside the event loop. Only requests of one tenant,
the client's key, and of one cache_salt share rows of the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from tokenmill.engine.core import Core
from tokenmill.engine.requests import Request
from tokenmill.engine.scoring import prompt_logprobs
from tokenmill.errors import ReceiptError, RequestError
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.http.errors import ApiError, TooLong, about
from tokenmill.serve.request.calling import Calling, calling_of
from tokenmill.serve.request.constraints import about_constraint, constraint_of, constraint_warnings, told_of
from tokenmill.serve.request.effort import settle_effort
from tokenmill.serve.request.fields import Body, ChatBody, CompletionBody, SamplingBody, TokenizeBody
from tokenmill.serve.request.reading import Readers
from tokenmill.settings.recommended import OPENAI, Recommended, default_settings
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams
from tokenmill.text.tools.history import unread

PromptOf = Callable[[Core, ChatBody], tuple[Calling, list[int], list[str]]]
TURNS = "this model's chat template refuses such turns, so messages that follow each other were put together"
MAX_NAME = 100  # characters of a field's name that are worth giving back
COMPLETION_TOKENS = 16  # by default, as in OpenAI's API


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


def prepare_completion(
    core: Core, body: CompletionBody, tenant: bytes = b"", protocol: Recommended = OPENAI
) -> Prepared:
    """See the module. protocol: the defaults of sampling that a protocol has."""
    if not body.prompts:
        raise ApiError(400, "prompt: an empty list has nothing to continue", "prompt")
    with about("prompt"):
        tokens = [_cut(core, body, _encoded(core, body, prompt)) for prompt in body.prompts]
    only_prompts = body.echo and body.max_tokens == 0  # one token is computed and not shown
    max_tokens = 1 if only_prompts else COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    _check_best_of(body)
    ranked = {} if (body.best_of or 1) == 1 else {"n": body.best_of, "logprobs": body.logprobs or 0}
    _check_max_tokens(max_tokens, "max_tokens")
    if only_prompts and body.receipt:
        raise ApiError(400, "receipt needs a text: with echo, max_tokens = 0 gives none", "receipt")
    more = {"logprobs": body.logprobs} | ranked
    prepared = _prepared(core, body, tenant, tokens, "prompt", max_tokens, more, protocol=protocol)
    return replace(prepared, only_prompts=only_prompts, warnings=[*warnings_of(body), *prepared.warnings])


def prepare_chat(
    core: Core,
    body: ChatBody,
    tenant: bytes = b"",
    prompt_of: PromptOf | None = None,
    protocol: Recommended = OPENAI,
) -> Prepared:
    """See the module. prompt_of: what makes the prompt of the conversation, if it is not chat_prompt. protocol: see
    prepare_completion.
    """
    calling, tokens, warnings = (prompt_of or chat_prompt)(core, body)
    tokens = _cut(core, body, tokens)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    which = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    _check_max_tokens(max_tokens := getattr(body, which), which)
    answer = calling.answer(core.inputs, tokens, body)
    more = {"logprobs": logprobs, "shown_token_ids": answer.shown_ids}
    prepared = _prepared(core, body, tenant, [tokens], "messages", max_tokens, more, answer.constraint, protocol)
    told = (*answer.warnings, *prepared.warnings)
    warnings = [*warnings_of(body), *told, *warnings, *template_warnings(core, body)]
    return replace(prepared, warnings=warnings, readers=answer.readers)


def chat_prompt(core: Core, body: ChatBody | TokenizeBody) -> tuple[Calling, list[int], list[str]]:
    """The tools of a conversation, its token ids, and warnings."""
    calling = calling_of(core.loaded, body)
    effort = settle_effort(core.inputs, calling.tools, body) if isinstance(body, ChatBody) else []
    warnings = [*calling.warnings, *effort]
    with about("messages"):
        messages, more = calling.conversation(body.messages or ())
        warnings += unread(body.messages or ())
        variables = {**template_variables(body), **more}
        try:
            return calling, core.inputs.chat_prompt(messages, variables=variables), warnings
        except RequestError:
            if (other := calling.in_turns(messages)) == messages:
                raise
            tokens = core.inputs.chat_prompt(other, variables=variables)
        return calling, tokens, [*warnings, TURNS]


def template_variables(body: ChatBody | TokenizeBody) -> dict[str, Any]:
    """The variables that the chat template reads beside the messages."""
    own = {name: getattr(body, name) for name in ("add_generation_prompt", "continue_final_message")}
    return {**(body.chat_template_kwargs or {}), **own}


def template_warnings(core: Core, body: ChatBody | TokenizeBody) -> list[str]:
    """A warning for each variable that the chat template was given and does not read."""
    unread = core.inputs.unread_variables(template_variables(body))
    return [f"this model's chat template does not read {name[:MAX_NAME]!r}, so it changes nothing" for name in unread]


def warnings_of(body: Body) -> list[str]:
    """A warning for each field that is not known, and for one that may cut what another asks for."""
    unknown = [f"unknown field {name[:MAX_NAME]!r} is ignored" for name in body.unknown]
    return [*unknown, *(constraint_warnings(body) if isinstance(body, SamplingBody) else ())]


def _encoded(core: Core, body: CompletionBody, prompt: Any) -> list[int]:
    """The token ids of a prompt; of None, which in OpenAI's API is the beginning of a document."""
    if prompt is not None:
        return core.inputs.encode(prompt, body.add_special_tokens)
    if (first := core.inputs.document_start) is None:
        raise RequestError("null is the beginning of a text, and this model names no token that begins one")
    return [first]


def _check_max_tokens(max_tokens: int | None, name: str) -> None:
    if max_tokens is not None and max_tokens < 1 and max_tokens != -1:
        raise ApiError(400, f"{name} = {max_tokens} is not allowed: at least 1, or -1 for as many as fit", name)


def _prepared(
    core: Core,
    body: SamplingBody,
    tenant: bytes,
    prompts: list[list[int]],
    field: str,
    max_tokens: int | None,
    more: dict[str, Any],
    constraint: tuple[str, dict[str, Any]] | None = None,
    protocol: Recommended = OPENAI,
) -> Prepared:
    """field: where the prompts come from. more: settings that not every body has under their own name. constraint: the
    field that constrains the text and the setting that it becomes, if they are not to be read from the body. protocol:
    see prepare_completion.
    """
    constrained, settled = constraint_of(body) if constraint is None else constraint
    settings = default_settings(core.inputs.defaults, protocol) | _given(body) | more | settled
    salt, sequences = _salt(body, tenant), []
    for tokens in prompts:
        num_new = _clamped(core, len(tokens), field, max_tokens)
        _check_min_tokens(body.min_tokens, num_new, _limit(core) - len(tokens))
        with about_constraint(constrained):
            params = SamplingParams(**{**settings, "max_new_tokens": num_new})
            sequences += core.request(tokens, params, priority=body.priority, salt=salt).sequences
    for sequence in sequences:
        sequence.client = tenant
    if body.receipt:
        _read_model(core)
    deadline_s = core.loop.clock() + (inf if body.timeout is None else body.timeout)
    is_clamped = max_tokens is not None and max_tokens > num_new
    warnings = [*told_of(constrained, sequences[0].choosing.constraint)]
    request = Request(sequences, deadline_s)
    prepared = Prepared(request, prompts, params.n, body.n or 1, warnings=warnings, is_clamped=is_clamped)
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(400, "prompt_logprobs are not part of a stream: leave out one of the two", "prompt_logprobs")
    if body.num_prompt_logprobs is None:
        return prepared
    noted = [prompt_logprobs(core, each, body.num_prompt_logprobs, body.priority, salt) for each in prompts]
    for sequence, _ in noted:
        sequence.client = tenant
    return replace(prepared, prompt_logprobs=noted)


def _read_model(core: Core) -> None:
    """Read the model's files for the digests of receipts, here in a thread, unless they were read before."""
    try:
        assert core.receipts is not None, "a server has no draft model of its own"
        core.receipts.model  # noqa: B018
    except ReceiptError as error:
        raise ApiError(409, str(error), "receipt") from None


def _check_min_tokens(min_tokens: int | None, num_new: int, left: int) -> None:
    """ApiError where the context leaves too few tokens. SamplingParams refuses a max_tokens that is too small."""
    if min_tokens is not None and min_tokens > num_new == left:
        message = f"min_tokens = {min_tokens} is not allowed: at most {left}, which the prompt leaves of the context"
        raise ApiError(400, message, "min_tokens")


def _check_best_of(body: CompletionBody) -> None:
    if body.best_of is None:
        return
    if body.best_of < (least := body.n or 1):
        raise ApiError(400, f"best_of = {body.best_of} is not allowed: at least n, which is {least}", "best_of")
    if body.best_of > 1 and body.stream:
        raise ApiError(400, "best_of is not possible in a stream: the best is known at the end", "best_of")


def _salt(body: SamplingBody, tenant: bytes) -> bytes:
    """See Core.request."""
    return tenant + (body.cache_salt or "").encode("utf-8", "surrogatepass")


def _given(body: SamplingBody) -> dict[str, Any]:
    """The fields that are given, by their names in SamplingParams."""
    given = {name: value for name, field in HTTP_FIELDS.items() if (value := getattr(body, field)) is not None}
    if given.get("seed") == -1:  # any, also where the server has one
        del given["seed"]
    return given


def _limit(core: Core) -> int:
    """Tokens of a prompt and its continuation together."""
    return core.loaded.resolved.longest_text


def _clamped(core: Core, num_prompt: int, field: str, max_tokens: int | None) -> int:
    """The new tokens that are asked for, at most as many as fit."""
    left = _limit(core) - num_prompt
    if left < 1:
        raise TooLong(num_prompt, _limit(core), field)
    return left if max_tokens in (None, -1) else min(max_tokens, left)


def _cut(core: Core, body: SamplingBody, tokens: list[int]) -> list[int]:
    """The last tokens of a prompt, or the first, as many as are wanted; -1: as many as leave room for one more."""
    if (kept := body.truncate_prompt_tokens) is None:
        return tokens
    if kept == 0:
        raise ApiError(400, "truncate_prompt_tokens = 0 is not allowed: at least 1, or -1", "truncate_prompt_tokens")
    kept = kept if kept > 0 else max(1, _limit(core) - 1)
    return tokens[:kept] if body.truncation_side == "right" else tokens[-kept:]
