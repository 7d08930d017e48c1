"""A receipt: the model, the settings, the prompt and the tokens of one text, with a hash over all of it.

The hash finds what was damaged or changed without care. It is no signature: whoever changes a receipt can compute the
hash again, and then the tokens show it, since nobody can compute those but with the model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.json_lines import one_line

FORMAT = 1
"""The number of the format, under the key "receipt". Files of every earlier number are read."""


@dataclass(frozen=True, repr=False)
class Receipt:
    """A record of a text and of how it was computed, which `Completion.receipt` makes and `Engine.verify` checks.

    str() is JSON in one line.

    tokenmill: the version. model: its name, and the sha256 of each of its files and of its chat template; and, where an
    adapter computed the text, "adapter": its name and the sha256 of its bytes. engine: the
    settings and the build on which texts depend. sampling: with the seed of this text and its own limit of new tokens.
    prompt, tokens: token ids. session: of a text that was continued, where the answer began, and what held before.
    is_changed: whether it was read with a hash that does not fit what it says.
    """

    tokenmill: str
    model: Mapping[str, Any]
    engine: Mapping[str, Any]
    sampling: SamplingParams
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: int | str | None = None
    session: Mapping[str, Any] | None = None
    is_changed: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"<tokenmill.Receipt {self.model['name']}, {len(self.tokens)} tokens, {self.hash[:8]}>"

    def __str__(self) -> str:
        text = one_line(json.dumps(self.document, ensure_ascii=False))
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, in a stop text perhaps
            return json.dumps(self.document)
        return text

    @property
    def hash(self) -> str:
        """SHA-256, in hexadecimal digits, of the canonical form of everything else."""
        return hash_of(self.facts)

    @property
    def document(self) -> dict[str, Any]:
        """The receipt as JSON has it, with its hash."""
        return {**self.facts, "hash": self.hash}

    @property
    def facts(self) -> dict[str, Any]:
        """The receipt as JSON has it, without the hash."""
        return {
            "receipt": FORMAT,
            "tokenmill": self.tokenmill,
            "model": dict(self.model),
            "engine": dict(self.engine),
            "sampling": sampling_facts(self.sampling),
            "prompt": list(self.prompt),
            "tokens": list(self.tokens),
            "text": self.text,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "session": None if self.session is None else dict(self.session),
        }


def hash_of(facts: Mapping[str, Any]) -> str:
    """Compute Receipt.hash. The canonical form is JSON in ASCII with sorted keys and no spaces, in which 1.0 is written
    1, since programs that hand a receipt on may write it so.
    """
    given = _canonical({name: value for name, value in facts.items() if name != "hash"})
    return sha256(json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return value if all(type(each) is int for each in value) else [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


WITHOUT = ("n", "logprobs")
"""Settings that change no text: each continuation has a receipt and a seed of its own."""
_DEFAULTS = SamplingParams()


def sampling_facts(params: SamplingParams) -> dict[str, Any]:
    """Write settings as JSON has them: all that are not the default, and always the seed and the limit of new tokens.

    Where the likeliest token is taken there is no seed.
    """
    names = [name for name in SamplingParams.__dataclass_fields__ if name not in WITHOUT]
    always = ("max_new_tokens", "seed")
    found = {name: getattr(params, name) for name in names}
    return {name: _plain(value) for name, value in found.items() if name in always or value != getattr(_DEFAULTS, name)}


def _plain(value: Any) -> Any:
    """Write a value of a setting as JSON has it, where minus infinity is a text."""
    if isinstance(value, Mapping):
        return {str(key): "-inf" if each == float("-inf") else each for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
