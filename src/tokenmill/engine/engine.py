"""The public face: a loaded model that generates, streams, scores and opens sessions. The loop is in core.py."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from tokenmill.config import ResolvedConfig, SamplingParams
from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion, Piece
from tokenmill.engine.requests import Prompt, Request, is_batch
from tokenmill.engine.scoring import logits, score
from tokenmill.engine.session import Session, open_session
from tokenmill.errors import RequestError
from tokenmill.model.config import ModelConfig
from tokenmill.text.tokenizer import Tokenizer

__all__ = ["Engine"]


class Engine:
    """A loaded model with its cache. Made by `tokenmill.load`; safe to use from several threads.

    core is the loop that every method drives. A server uses it directly, for requests with a priority, a deadline or a
    way to cancel them.
    """

    def __init__(self, core: Core) -> None:
        self.core = core

    @property
    def config(self) -> ResolvedConfig:
        """The settings, every default resolved."""
        return self.core.loaded.config

    @property
    def model_config(self) -> ModelConfig:
        """The shape of the model, as its config.json gives it."""
        return self.core.loaded.model_config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, if it has one."""
        return self.core.loaded.tokenizer

    @property
    def program_name(self) -> str:
        """The name of the program that runs the model."""
        return self.core.loaded.program_name

    @property
    def program_reason(self) -> str:
        """Why that program was chosen."""
        return self.core.loaded.program_reason

    @property
    def kernel_name(self) -> str:
        """The name of the attention kernel, or of the program if it computes attention itself."""
        return self.core.loaded.kernel_name

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that were allocated, by kind."""
        return self.core.loaded.memory

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Digests of the files that the model came from, when it was loaded; see weights/fingerprint.py."""
        return self.core.loaded.fingerprint

    @overload
    def generate(self, prompt: str | List[int], **settings: Any) -> Completion: ...
    @overload
    def generate(self, prompt: List[str] | List[List[int]], **settings: Any) -> list[Completion]: ...
    def generate(self, prompt: Any, **settings: Any) -> Any:
        """Continue a prompt, or each of a list of prompts, ragged as they come.

        `settings` are the fields of SamplingParams. With n above 1 every prompt gives n completions, in order. Raises
        RequestError if one of the prompts cannot be served; then none of them is run.
        """
        params = self.core.inputs.params(settings)
        many = is_batch(prompt)
        done = self.core.finish(self._requests(list(prompt) if many else [prompt], params))
        return done if many or params.n > 1 else done[0]

    def stream(self, prompt: Prompt, **settings: Any) -> Iterator[Piece]:
        """Continue one prompt and yield its text as it becomes safe to show; the last piece carries the completion.

        The prompt is checked at once and queued with the first piece. Closing the iterator early ends the sequence and
        frees its blocks.
        """
        params = self.core.inputs.params(settings)
        if params.n != 1:
            raise RequestError(f"stream serves one continuation: n = {params.n} needs generate")
        (request,) = self._requests([prompt], params)
        return self.core.follow(request)

    def logits(self, prompt: Prompt) -> Tensor:
        """Logits after every token of the prompt, [T, V] float32 on the CPU."""
        return logits(self.core, prompt)

    def score(self, prompt: Prompt, choices: List[Prompt]) -> list[float]:
        """Log-probability of each choice as the continuation of the prompt; the prompt is computed once."""
        return score(self.core, prompt, choices)

    def session(self, prompt: Prompt | None = None) -> Session:
        """A text that grows from call to call, its rows kept. See Session."""
        session = Session(self.core)
        if prompt is not None:
            session.append(prompt)
        return session

    def open(self, path: str | Path, convert: bool = False) -> Session:
        """A session from a file that Session.save wrote, in this process or another; its text goes on as in one run.

        `convert` takes rows of another dtype or weight scheme too, whose text may then differ. SnapshotError, by field,
        for a file that is damaged or of another model.
        """
        return open_session(self.core, Path(path), convert)

    def encode(self, prompt: Prompt, add_special_tokens: bool = True, *, after: List[int] = ()) -> list[int]:
        """Token ids of a prompt, or of what continues the tokens `after`; ids are checked, text needs a tokenizer."""
        return self.core.inputs.encode(prompt, add_special_tokens, after=after)

    def chat_prompt(self, messages: List[Mapping[str, Any]], allow_special: bool = False) -> list[int]:
        """Token ids of a conversation, rendered by the model's own chat template, up to the assistant's turn.

        What a message spells is text, even `<|im_end|>`, unless `allow_special` lets it be a control token.
        """
        return self.core.inputs.chat_prompt(messages, allow_special)

    def _requests(self, prompts: List[Prompt], params: SamplingParams) -> list[Request]:
        """A request for each prompt, or a refusal that says which prompt it is about."""
        requests = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                requests.append(self.core.request(prompt, params))
            except RequestError as error:
                which = f"prompt {number} of {len(prompts)}: " if len(prompts) > 1 else ""
                raise RequestError(f"{which}{error}") from None
        return requests
