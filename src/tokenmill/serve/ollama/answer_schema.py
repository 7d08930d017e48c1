"""The bodies of answers of Ollama's API, for /openapi.json alone. See serve/answer_schema.py."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenmill.serve.facts.answer_schema import Answer


class OllamaError(Answer):
    """The answer to every request of /api that is refused or fails, and the last line of a stream that has failed."""

    error: str


class OllamaStatus(Answer):
    """The progress of a pull."""

    status: str


class OllamaFunction(Answer):
    """The function of a call; arguments are an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Answer):
    """A call of a function, which comes whole."""

    id: str
    function: OllamaFunction


class OllamaMessage(Answer):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    thinking: str = Field(default="")
    tool_calls: list[OllamaCall] = Field(default=[])


class OllamaToken(Answer):
    """A token and its log-probability; bytes: of the token."""

    token: str
    logprob: float
    bytes: list[int] = Field(default=[])


class OllamaLogprob(OllamaToken):
    """A token of the text, and the likeliest ones in its place."""

    top_logprobs: list[OllamaToken] = Field(default=[])


class OllamaAnswer(Answer):
    """An object of a stream, or all of it. From done_reason on the last object alone has these; durations are in
    nanoseconds.
    """

    model: str
    created_at: str
    done: bool
    logprobs: list[OllamaLogprob] = Field(default=[])
    done_reason: Literal["stop", "length", "load", "unload"] | None = Field(default=None)
    total_duration: int = Field(default=0)
    load_duration: int = Field(default=0)
    prompt_eval_count: int = Field(default=0)
    prompt_eval_duration: int = Field(default=0)
    eval_count: int = Field(default=0)
    eval_duration: int = Field(default=0)
    warnings: list[str] = Field(default=[])
    prompt_token_ids: list[int] = Field(default=[])
    token_ids: list[int] = Field(default=[])


class OllamaChatAnswer(OllamaAnswer):
    """The answer of POST /api/chat."""

    message: OllamaMessage


class OllamaGenerateAnswer(OllamaAnswer):
    """The answer of POST /api/generate. context: the ids of prompt and answer, with the last object."""

    response: str
    thinking: str = Field(default="")
    context: list[int] = Field(default=[])


class OllamaDetails(Answer):
    """The kind of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaListed(Answer):
    """A model of /api/tags."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaRunning(Answer):
    """A model of /api/ps."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaTagsAnswer(Answer):
    """The answer of GET /api/tags."""

    models: list[OllamaListed]


class OllamaPsAnswer(Answer):
    """The answer of GET /api/ps."""

    models: list[OllamaRunning]


class OllamaVersionAnswer(Answer):
    """The answer of GET /api/version. version: of Ollama's API."""

    version: str
    tokenmill: str


class OllamaShowAnswer(BaseModel):
    """The answer of POST /api/show."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
