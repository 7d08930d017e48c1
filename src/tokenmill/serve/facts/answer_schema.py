"""The bodies of answers, for /openapi.json alone.

answers.py and the routes write them by hand, and nothing is checked against these while the server runs. A test holds
both together.

An answer has no other keys than these. Those with a default are there only when a request asks for them.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Reason = Literal["stop", "length"]
StopReason = int | str | None
"""The stop text, or the id among stop_token_ids, that ended a text; None for any other end."""


class Answer(BaseModel):
    """The part that all answers have in common."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Error(Answer):
    """The fault of a request. param: the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """The answer to every request that is refused or fails."""

    error: Error


class CachedTokens(Answer):
    """cached_tokens: of the prompt, those whose rows were in the cache."""

    cached_tokens: int


class ReasoningTokens(Answer):
    """reasoning_tokens: of the answer, those of thinking."""

    reasoning_tokens: int


class Usage(Answer):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | None = None


class CompletionLogprobs(Answer):
    """An entry for each token; None for the first of a prompt, which follows nothing."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptToken(Answer):
    """A token of a prompt, or one that might have stood there; rank: 1 for the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""The log-probabilities of each token of a prompt, by token id; None for the first."""


class CompletionChoice(Answer):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason
    stop_reason: StopReason
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []
    prompt_logprobs: PromptLogprobs = []
    receipt: dict[str, Any] = {}


class Head(Answer):
    """The fields with which answers and their chunks begin."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    warnings: list[str] = []


class CompletionAnswer(Head):
    """The answer of POST /v1/completions. Chunks of a stream have the same form."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class LikelyToken(Answer):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(LikelyToken):
    """A token, and the likeliest at its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(Answer):
    """An entry for each token."""

    content: list[ChatToken]


class CalledFunction(Answer):
    """The function that is called. arguments: the JSON text of an object."""

    name: str
    arguments: str


class ToolCall(Answer):
    """A call of a function, whose result the client gives in a message with this id."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledTool(Answer):
    """The custom tool that is called. input: the text that it gets."""

    name: str
    input: str


class CustomToolCall(Answer):
    """A call of a custom tool, whose result the client gives in a message with this id."""

    id: str
    type: Literal["custom"]
    custom: CalledTool


class ChatMessage(Answer):
    """The message that the model writes. content: null beside calls if there is no text."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall | CustomToolCall] = []


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: StopReason
    token_ids: list[int] = []
    receipt: dict[str, Any] = {}


class ChatAnswer(Head):
    """The answer of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] = []
    prompt_logprobs: PromptLogprobs = []


class TokensAnswer(Answer):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    warnings: list[str] = []


class TextAnswer(Answer):
    """The answer of POST /detokenize."""

    prompt: str
    warnings: list[str] = []


class CacheText(Answer):
    """A text that holds blocks of the cache. id: of its answer. shared: blocks that other texts hold too."""

    id: str | None
    state: Literal["running", "waiting"]
    tokens: int
    prompt_tokens: int
    cached_tokens: int | None
    blocks: int
    shared: int


class CacheCount(Answer):
    """Texts that are not named."""

    texts: int
    blocks: int


class CacheAnswer(Answer):
    """The answer of GET /v1/cache. blocks: a letter for each: f free, k kept for prompts that begin alike, u in use,
    s shared."""

    block_size: int
    blocks: str
    running: int
    waiting: int
    texts: list[CacheText]
    others: CacheCount
    sessions: CacheCount


class TokenizerAnswer(BaseModel):
    """The answer of GET /tokenizer_info: these fields, and what else the tokenizer's config says."""

    tokenizer_class: str
    vocab_size: int

    bos_token: str = ""
    eos_token: str = ""
    unk_token: str = ""
    sep_token: str = ""
    pad_token: str = ""
    cls_token: str = ""
    mask_token: str = ""
    chat_template: str | None
    model_max_length: int


class ModelAnswer(Answer):
    """The model that is served. max_model_len: tokens of a prompt and its continuation together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class DescribedModel(Answer):
    """The model, as Codex looks for it. context_window: as max_model_len."""

    slug: str
    display_name: str
    context_window: int


class ModelsAnswer(Answer):
    """A list of one."""

    object: Literal["list"]
    data: list[ModelAnswer] = Field(min_length=1, max_length=1)
    models: list[DescribedModel] = Field(min_length=1, max_length=1)


class SavedAnswer(Answer):
    """A session that is kept. bytes: of its file."""

    name: str
    tokens: int
    bytes: int
    warnings: list[str] = []


class RestoredAnswer(Answer):
    """A session that was loaded. cached_tokens: those that requests find."""

    name: str
    tokens: int
    cached_tokens: int


class ErasedAnswer(Answer):
    """A session that is forgotten."""

    name: str
    erased: Literal[True]


class StatusAnswer(Answer):
    """All is well."""

    status: Literal["ok"]


class LoadAnswer(Answer):
    """Texts that run or wait."""

    server_load: int


class ServerAnswer(Answer):
    """The settings of the engine, the limits of the server, and its sampling by the beginning of a path."""

    version: str
    model: str
    engine: dict[str, Any]
    server: dict[str, Any]
    sampling: dict[str, dict[str, Any]]


class VersionAnswer(Answer):
    """The version of tokenmill."""

    version: str
