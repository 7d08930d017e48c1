"""Bodies of OpenAI's completions and chat completions become Asks. Most of their fields all protocols have."""

from typing import Any, ClassVar

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.fields import (
    SETTINGS,
    Body,
    ConversationSettings,
    Int64,
    ListOf,
    Messages,
    Nullable,
    NumTop,
    Settings,
    also,
    unknown_in,
)
from tokenmill.serve.request.prompt import Model
from tokenmill.text.infill import Infill

COMPLETION_TOKENS = 16  # by default, as in OpenAI's API
TOOL_FIELDS = ("tools", "tool_choice")  # of conversations alone
NO_CONSTRAINTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("guided_decoding", "response_schema", "logits_processors"), ("", [])),
    **dict.fromkeys(("guided_whitespace_pattern", "grammar_triggers", "structural_tag"), ("", [])),
    "grammar_lazy": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "function_call": ("none",),
}
"""Names under which other servers take a constraint of the text, or a tool, that is not served."""
NOT_SERVED: dict[str, tuple[Any, ...]] = {
    **Body.UNSERVED,
    **NO_CONSTRAINTS,
    **dict.fromkeys(("lora", "prompt_embeds", "prompt_token_ids"), ("", [])),
}


class StreamOptions(Nullable):
    """The options of a stream beside its text. No chunk is padded, so that it is of no use to turn that off.

    continuous_usage_stats: usage, if it is wanted, is in every chunk, with the tokens up to there, as in vLLM.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class AnswerFields(Settings):
    """The fields of both routes that say how the answer comes."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    return_progress: bool = False
    receipt: bool = False
    use_beam_search: bool = False
    length_penalty: float = 1.0
    prompt_logprobs: NumTop | None = None

    def check(self) -> None:
        """Raise ApiError, see Body, and for options of a stream that there is not."""
        super().check()
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options are only allowed with stream: true", "stream_options")

    @property
    def unknown(self) -> list[str]:
        """Return the names of unknown fields, see Body."""
        options = self.stream_options.model_extra if self.stream_options is not None else None
        return [*super().unknown, *(f"stream_options.{name}" for name in options or ())]


class CompletionBody(AnswerFields):
    """POST /v1/completions."""

    UNSERVED: ClassVar = NOT_SERVED | {"top_logprobs": (0,)}

    suffix: str | None = None
    prompt: str | ListOf[str] | ListOf[Int64] | ListOf[ListOf[Int64]] | None
    max_tokens: Int64 | None = also("max_tokens", *SETTINGS["max_new_tokens"].http_aliases, "max_completion_tokens")
    best_of: Int64 | None = None
    logprobs: NumTop | None = None
    echo: bool = False
    add_special_tokens: bool = True


class ChatBody(AnswerFields, ConversationSettings):
    """POST /v1/chat/completions."""

    UNSERVED: ClassVar = {name: each for name, each in NOT_SERVED.items() if name not in TOOL_FIELDS} | {
        "chat_template": (),
        "documents": ([],),
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "add_special_tokens": (False,),
        "echo": (False,),
        "best_of": (1,),
    }

    messages: Messages
    logprobs: bool = False
    top_logprobs: NumTop | None = None

    @property
    def unknown(self) -> list[str]:
        """Return the names of unknown fields, see Body."""
        return [*super().unknown, *unknown_in(self.messages)]


def parse_completion(body: CompletionBody, model: Model) -> Ask:
    """Read a prompt, or several, that are continued. None as a prompt stands for the beginning of a text."""
    ask, given = _begun(body, model), body.prompt
    if given == []:
        raise ApiError(400, "prompt: an empty list has nothing to continue", "prompt")
    if body.suffix:
        _fill_in(ask, given, body, model)
    else:
        is_one = given is None or isinstance(given, str) or isinstance(given[0], int)
        ask.prompts = [given] if is_one else list(given or ())
    ask.sampling.setdefault("max_new_tokens", COMPLETION_TOKENS)
    ask.best_of, ask.echo, ask.adds_special = body.best_of, body.echo, body.add_special_tokens
    ask.sampling["logprobs"] = body.logprobs
    wanted = (body.prompt_logprobs, body.logprobs if body.echo else None)
    ask.num_prompt_logprobs = max((each for each in wanted if each is not None), default=None)
    return ask


def _fill_in(ask: Ask, given: Any, body: CompletionBody, model: Model) -> None:
    """Have a text filled in between the prompt and the suffix."""
    model.check_fills_in("suffix", "unsupported_parameter")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):
        given = given[0]
    if not isinstance(given, str):
        raise ApiError(400, "with a suffix, prompt is one text", "prompt")
    if body.echo:
        raise ApiError(400, "echo is not possible with a suffix", "echo")
    ask.infill = Infill(given, body.suffix or "")


def parse_chat(body: ChatBody, model: Model) -> Ask:
    """Read a conversation, whose messages stay as they were sent where the chat template takes them."""
    ask = _begun(body, model)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    ask.messages, ask.is_as_sent = body.messages, True
    ask.sampling["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    ask.num_prompt_logprobs = body.prompt_logprobs
    return ask


def _begun(body: AnswerFields, model: Model) -> Ask:
    """Check a body, and read what both routes have."""
    model.check(body)
    ask = Ask(stream=body.stream, unknown=body.unknown, own=body.stream_options)
    ask.take(body)
    ask.wants_receipt, ask.shown_prompt_logprobs = body.receipt, body.prompt_logprobs
    ask.wants_progress = body.return_progress
    ask.length_penalty = body.length_penalty if body.use_beam_search else None
    return ask
