"""The bodies of Ollama's API. Types are strict for what is read; what is not known is named in `warnings`."""

from typing import Any, ClassVar

from pydantic import Field

from tokenmill.serve.request.constraints import Schema
from tokenmill.serve.request.fields import Body, Int64, ListOf, NumTop

IGNORED = {
    "truncate": "a prompt that is too long is refused, and nothing is ever cut",
    "shift": "no text is ever dropped from a context",
}
"""Fields that change nothing of a text here, with the reason."""


class NamedBody(Body):
    """A body that names a model."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}

    model: str = Field(min_length=1)

    def check(self) -> None:
        """See Body. Names that are like others are ignored as all unknown ones are."""


class OllamaBody(NamedBody):
    """The fields of both routes that generate."""

    stream: bool = True
    format: Schema | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: NumTop | None = None


class OllamaChatBody(OllamaBody):
    """POST /api/chat. Without messages it asks whether the model is loaded."""

    messages: ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None


class OllamaGenerateBody(OllamaBody):
    """POST /api/generate. Without a prompt it asks whether the model is loaded."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: ListOf[Int64] | None = None
    raw: bool = False
    images: ListOf[str] | None = None


class OllamaModelBody(Body):
    """The bodies of routes about models. name: what older clients call it. stream: of the progress of a pull."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}

    name: str | None = None
    stream: bool = True

    @property
    def asked(self) -> str:
        """The name that is given; "" for none."""
        return self.model or self.name or ""


class OllamaCopyBody(Body):
    """POST /api/copy."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}

    source: str = ""
    destination: str = ""


class OllamaEmbedBody(NamedBody):
    """POST /api/embed, and POST /api/embeddings with a prompt."""

    input: str | ListOf[str] | None = None
    prompt: str | None = None
