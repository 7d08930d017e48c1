"""The work on one request: from its body to the form of its answer."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from tokenmill.engine.core import Core
from tokenmill.errors import DeadlinePassed
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.loop.resumption import Resumption, resumption_of
from tokenmill.serve.loop.service import Service, tenant_of
from tokenmill.serve.request.fields import SamplingBody
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.writer import Format

MAX_TEXTS = 1024  # of one request
EVENTS, LINES = "text/event-stream", "application/x-ndjson"  # the kinds of streams
MIN_TIMEOUT_S = 0.001  # for a stream that goes on elsewhere after its time


@dataclass
class Work:
    """One request, from its body to the form of its answer. media_type: of the answer as a stream."""

    service: Service
    request: Request
    body: SamplingBody
    prepare: Callable[[Core, Any, bytes], Prepared]
    kind: Callable[..., Format]
    media_type: str = EVENTS

    @property
    def num_slots(self) -> int:
        """Texts that run or wait together; the others of the request wait behind them."""
        return min(self.body.num_sequences, self.service.admission.max_open_of_one)

    def check_number(self) -> None:
        """ApiError for more texts than a request may ask for; for one prompt no more than run and wait together."""
        count, max_together = self.body.num_sequences, self.service.admission.max_open_of_one
        for name in ("n", "best_of"):
            if (each := getattr(self.body, name, None) or 1) > max_together:
                raise ApiError(
                    400, f"{name} = {each} is more than the {max_together} that this server takes at once", name
                )
        if count > max(MAX_TEXTS, max_together):
            message = f"{count} texts are more than the {max(MAX_TEXTS, max_together)} that one request may ask for"
            raise ApiError(400, message, "prompt")

    async def begin(self) -> tuple[Prepared, Format]:
        """The prompts encoded and everything checked, their log-probabilities computed if they are wanted."""
        engine, written = self.service.engine, resumption_of(self.request.scope)
        if self.body.seed is None:
            self.body.seed = self.service.options.seed
        if written is not None:
            self._take_up(written)
        prepared = await self.service.in_thread(
            self.request, self.prepare, engine.core, self.body, tenant_of(self.request)
        )
        try:
            async with asyncio.timeout(self.body.timeout if prepared.prompt_logprobs else None):
                for sequence, _ in prepared.prompt_logprobs:
                    await self.service.driver.score(sequence)
        except TimeoutError:
            raise DeadlinePassed("the deadline has passed before the prompt was computed") from None
        name, fingerprint = self.service.options.name, self.service.fingerprint
        form = self.kind(self.body, prepared, name, fingerprint, engine.tokenizer)
        if written is not None and self.body.stream:
            await self.service.in_thread(self.request, self._resume, prepared, form, written)
        return prepared, form

    def _take_up(self, written: Resumption) -> None:
        """Have the seed and the time that the stream began with; a new one gets a seed that can be told."""
        other = written.begun.get("system_fingerprint", self.service.fingerprint)
        if other != self.service.fingerprint:
            message = f"a stream of {other} cannot go on here, where texts may be others: {self.service.fingerprint}"
            raise ApiError(409, message, code="other_fingerprint")
        if self.body.seed in (None, -1) or "seed" in written.begun:
            self.body.seed = written.begun.get("seed", secrets.randbelow(2**32))
        if self.body.timeout is not None:
            self.body.timeout = max(self.body.timeout - written.elapsed_s, MIN_TIMEOUT_S)

    def _resume(self, prepared: Prepared, form: Format, written: Resumption) -> None:
        sequences = prepared.request.sequences
        self.service.engine.core.inputs.resume(sequences, [written.tokens.get(i, []) for i in range(len(sequences))])
        for index, number in written.num_cached.items():
            sequences[index].num_cached_tokens = number
        texts = {
            index: detokenizer.push(tokens)
            for index, tokens in written.tokens.items()
            if index not in written.ended
            and (detokenizer := self.service.engine.core.inputs.detokenizer(sequences[index])) is not None
        }
        form.resume(written, texts)
