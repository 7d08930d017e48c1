"""The maker of the receipts of one engine: the facts of its model and of its program, and the facts of each text.

A text's facts are noted when it ends, at the cost of its prompt in four bytes a token. The files of the model are read
for their digests when the first receipt is asked for.
"""

import platform
from array import array
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch

from tokenmill.errors import ReceiptError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.receipts.receipt import Receipt, sampling_facts
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.version import __version__


class ReceiptMaker:
    """The maker of receipts of one loaded model. engine: the settings and the build on which its texts depend."""

    def __init__(self, loaded: LoadedModel) -> None:
        config, header = loaded.config, loaded.compatibility
        self.name, self._files, self._tokenizer = config.model, loaded.files, loaded.tokenizer
        rope = loaded.model_config.rope
        self.engine: dict[str, Any] = {
            "program": loaded.program_name,
            "dtype": config.dtype,
            "scheme": config.scheme,
            "cache_format": config.cache_format,
            "kernel": loaded.kernel_name,
            "fuse": config.fuse,
            "compile": header["compile"],
            "threads": None if loaded.spec.has_threads else config.threads,
            "long_rope": rope is not None and rope.is_long(config.max_length),
            "device": config.device.partition(":")[0],
            "build": header["build"],
            "machine": platform.machine(),
            "torch": str(torch.__version__),
        }

    def note(self, sequence: Sequence) -> "TextOrigin":
        """Note what a sequence was computed from, when it ends."""
        return origin_of(self, sequence)

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """The name of the model, and the digests of its files and of its chat template. The first use reads them."""
        digests = self._files.digests
        if not digests:
            raise ReceiptError(f"{self.name} has no files, so that no receipt could name its weights")
        return {"name": self.name, "files": digests, "chat_template": template_digest(self._tokenizer)}


def template_digest(tokenizer: Tokenizer | None) -> str | None:
    """Compute the sha256 of a chat template, which says how a model thinks, too; None without one."""
    template = None if tokenizer is None else tokenizer.chat_template
    return None if template is None else sha256(template.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class TextOrigin:
    """The origin of a text, for its receipt. reason: against a receipt, or None. session, adapter: see Receipt."""

    maker: ReceiptMaker
    params: SamplingParams
    seed: int
    max_new_tokens: int
    prompt: "array[int]"
    session: Mapping[str, Any] | None
    reason: str | None = None
    adapter: Mapping[str, str] | None = None

    def __deepcopy__(self, _: object) -> "TextOrigin":
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Leave it out of a completion that is pickled: it knows the tokenizer and the files of this process."""
        return type(None), ()

    def receipt(self, text: str, tokens: List[int], finish_reason: str, stop_reason: int | str | None) -> Receipt:
        """Make the receipt. ReceiptError where there can be none."""
        if self.reason is not None:
            raise ReceiptError(self.reason)
        seed = self.seed if self.params.temperature else None
        sampling = replace(self.params, seed=seed, max_new_tokens=self.max_new_tokens, n=1, logprobs=None)
        model = self.maker.model if self.adapter is None else {**self.maker.model, "adapter": self.adapter}
        made_with = __version__, model, self.maker.engine, sampling
        return Receipt(*made_with, tuple(self.prompt), tuple(tokens), text, finish_reason, stop_reason, self.session)


CONVERTED = (
    "this session goes on from rows that another program, dtype or scheme computed, so its texts have no receipt"
)


def ends_of(params: SamplingParams) -> dict[str, Any]:
    """Return the settings of a part of a text that the next part depends on: they hold back tokens at the end."""
    facts = sampling_facts(params)
    return {name: facts[name] for name in ("stop", "stop_token_ids", "ignore_eos") if name in facts}


def origin_of(maker: ReceiptMaker, sequence: Sequence) -> TextOrigin:
    """Note what a sequence was computed from, when it ends."""
    num_prompt, choosing, session = sequence.num_prompt_tokens, sequence.choosing, None
    adapter = sequence.kept.adapter
    if sequence.keep:
        starts = choosing.penalties_from, choosing.constrained_from
        answer_from, constrained_from = (num_prompt if start is None else start for start in starts)
        before = None if sequence.earlier is None else ends_of(sequence.earlier[1])
        session = {"answer_from": answer_from, "constrained_from": constrained_from, "before": before}
    return TextOrigin(
        maker,
        choosing.params,
        choosing.seed,
        sequence.max_tokens - num_prompt,
        array("I", sequence.tokens[:num_prompt]),
        session,
        None if sequence.kept.is_own else CONVERTED,
        None if adapter is None else {"name": adapter.name, "sha256": adapter.digest.hex()},
    )
