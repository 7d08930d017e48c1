"""One request as it is asked, whatever the circumstances."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.prove.answer import CHAT


@dataclass(frozen=True)
class ProofRequest:
    """A route, a prompt, and the fields that decide the text. A conversation is one message of a user."""

    route: str
    prompt: str | tuple[int, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def body(self, model: str | None, stream: bool) -> dict[str, Any]:
        """The body of the request."""
        named = {} if model is None else {"model": model}
        streamed = {"stream": True} if stream else {}
        return {**named, **self._input(), **self.fields, **streamed}

    def _input(self) -> dict[str, Any]:
        if self.route == CHAT:
            return {"messages": [{"role": "user", "content": self.prompt}]}
        return {"prompt": self.prompt if isinstance(self.prompt, str) else list(self.prompt)}

    def having(self, **fields: Any) -> "ProofRequest":
        """The same request with other fields; None takes one away."""
        merged = {**self.fields, **fields}
        return replace(self, fields={name: value for name, value in merged.items() if value is not None})
