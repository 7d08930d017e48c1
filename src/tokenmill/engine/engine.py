"""Engine, the public face: generate, stream, chat, score, logits, session, open_session, close. Its loop: core.py."""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Unpack, overload

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion, Stream
from tokenmill.engine.readings import Readings
from tokenmill.engine.requests import Prompt, Request, batch_of, for_each, token_ids
from tokenmill.engine.session import Session
from tokenmill.errors import ConfigError
from tokenmill.settings.sampling_params import SamplingKeywords, SamplingParams
from tokenmill.value_reader import check_flag, path_of

log = logging.getLogger(__name__)

One = str | List[int]
Many = List[str] | List[List[int]]
Messages = List[Mapping[str, Any]]


class Engine(Readings):
    """A loaded model with its cache, made by `tokenmill.load`. It is safe to use from several threads, and a context.

    config: the settings, every default resolved. program_name, program_reason, kernel_name: the chosen program, the
    reason, and the attention kernel, which has the program's name if that computes attention itself. program_refusals:
    why faster programs cannot run. fingerprint: see LoadedModel. core: the loop that every method drives; a server uses
    it directly, for requests with a priority, a deadline or a way to cancel them.
    """

    def __init__(self, core: Core) -> None:
        if not isinstance(core, Core):
            raise ConfigError("Engine", core, "use tokenmill.load, which takes a model and makes its engine")
        self.core, loaded = core, core.loaded
        self.config, self.model_config, self.tokenizer = loaded.config, loaded.model_config, loaded.tokenizer
        self.program_name, self.program_reason = loaded.program_name, loaded.resolved.program_reason
        self.program_refusals = loaded.resolved.program_refusals
        self.kernel_name, self.fingerprint = loaded.kernel_name, loaded.fingerprint

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        config = self.config
        state = f"{config.max_length} tokens" if hasattr(self.core.loaded, "program") else "closed"
        return f"<tokenmill.Engine {config.model}, {self.program_name} {config.dtype}, {state}>"

    def close(self) -> None:
        """End all running requests, and let go of weights and cache. Later calls raise RequestError."""
        self.core.close()

    @overload
    def generate(  # type: ignore[overload-overlap] # a text is a sequence of texts too: the first form is meant
        self,
        prompt: One,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Many,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> Any:
        """Continue a prompt, or each of a list of prompts, ragged as they come: a completion for each.

        `settings` are fields of SamplingParams; they override the fields of `params`. With n above 1
        `Completion.completions` has all n of a prompt. adapter: the name of a loaded adapter, see load_adapter. Raises
        RequestError if one of the prompts cannot be served; then no prompt is run.
        """
        params = self.core.inputs.params(settings, params)
        prompts, many = batch_of(prompt)
        request = partial(self.core.request, params=params, adapter=adapter)
        done = iter(self.core.finish(for_each("prompt", prompts, request)))
        found = [replace(next(done), others=tuple(islice(done, params.n - 1))) for _ in prompts]
        return found if many else found[0]

    def stream(
        self,
        prompt: Prompt | List[str] | List[List[int]],
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> Stream:
        """Generate piece by piece: text comes as soon as it is safe to show. Read it with `for`, or with `async for`.

        `Piece.index` says which completion, counted prompt by prompt, a piece belongs to; its last piece carries the
        completion. Prompts are checked at once and queued with the first piece. Closing the stream early ends the
        sequences and frees their blocks.
        """
        params = self.core.inputs.params(settings, params)
        make = partial(self.core.request, params=params, adapter=adapter)
        requests = for_each("prompt", batch_of(prompt)[0], make)
        request = Request([each for one in requests for each in one.sequences])
        return Stream(self.core.follow(request), partial(self.core.cancel, request), self.core.thread)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> Completion:
        """Answer a conversation, such as [{"role": "user", "content": "Hello"}], through the model's chat template."""
        return self.generate(self.chat_prompt(messages), params, adapter=adapter, **settings)

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> Stream:
        """Answer as `chat` does, piece by piece."""
        return self.stream(self.chat_prompt(messages), params, adapter=adapter, **settings)

    def session(self, prompt: Prompt | None = None, *, salt: bytes = b"", adapter: str | None = None) -> Session:
        """Begin a text that grows from call to call, whose rows are kept. See Session. The others: see Core.request."""
        session = Session(self.core, salt=salt, adapter=self.core.adapter(adapter))
        if prompt is not None:
            session.append(prompt)
        return session

    def open_session(self, path: str | Path, convert: bool = False, *, salt: bytes = b"") -> Session:
        """Open a session from a file that Session.save wrote, in this process or another; its text goes on as in one
        run.

        `convert` takes rows of another dtype or weight scheme too; then the text may differ. SnapshotError, by field,
        for a file that is damaged or of another model, or whose adapter is not loaded.
        """
        return Session.open(self.core, path_of(path), check_flag("convert", convert), salt)

    def encode(self, prompt: Prompt, add_special_tokens: bool = True, *, after: List[int] = ()) -> list[int]:
        """Encode a prompt, or a continuation of the tokens `after`; given ids are checked, text needs a tokenizer."""
        before = token_ids(after, "value of `after`: that is a list of token ids")
        return self.core.inputs.encode(prompt, check_flag("add_special_tokens", add_special_tokens), after=before)

    def chat_prompt(
        self, messages: List[Mapping[str, Any]], allow_special: bool = False, **variables: Any
    ) -> list[int]:
        """Encode a conversation, rendered by the model's own chat template, up to the assistant's turn.

        A message is plain text, even `<|im_end|>` in it, unless `allow_special` lets that be a control token.
        variables: other variables of the template, such as enable_thinking=False; a warning names each that the
        template does not read. With `tools`, the model's template named "tool_use" is taken if it has one.
        add_generation_prompt=False ends with the messages, and with continue_final_message=True inside the last one.
        """
        tokens = self.core.inputs.chat_prompt(messages, check_flag("allow_special", allow_special), variables)
        for name in self.core.inputs.unread_variables(variables):
            log.warning("this model's chat template does not read %r, so it changes nothing", name)
        return tokens
