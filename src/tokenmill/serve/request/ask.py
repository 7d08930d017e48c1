"""Ask: one request, which no protocol spells. Each protocol's parser makes one, and all that computes reads it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.request.constraints import Constraint, constraint_of
from tokenmill.serve.request.fields import ConversationSettings, Settings
from tokenmill.settings.recommended import OPENAI, Recommended
from tokenmill.settings.sampling_params import HTTP_FIELDS
from tokenmill.text.infill import Infill
from tokenmill.value_reader import brief

BUDGETS: dict[str, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": None,
    "max": None,
}
"""Efforts → the most tokens of thinking; None leaves it to the model."""
PLACEHOLDER = "[{what}, which this model cannot read]"


@dataclass
class Ask:
    """A request. messages: a conversation. prompts: where there is none, texts and token ids that are continued, each
    by itself; None stands for the beginning of a text. after: token ids of an earlier text, behind which the prompt is
    put. infill: in the place of both, a text that stands between two others; is_cut: something of these was left out.
    only_prompts: where no new token is asked for, the rows of the prompt in the cache are all that is wanted.

    sampling: settings by their names in SamplingParams. constraint: see constraints.Constraint. best_of: texts that are
    made of each prompt; the client gets the n likeliest. echo: the client gets its prompt back. num_prompt_logprobs:
    likeliest tokens that are wanted at each token of a prompt; shown_prompt_logprobs: how many of them a field of its
    own shows. tools, tool_choice, parallel_calls: of a conversation, in OpenAI's form, which chat templates read, too.

    variables: of the chat template, which are named in a warning where it does not read them. hints: variables that it
    gets only if it reads them. effort, budget: of thinking; the budget is a limit where answers have marks of thinking.
    opens_answer, continues_last: how the prompt ends. is_as_sent: messages are put into turns only if the template
    refuses them. adds_special: special tokens are added to prompts. kept_tokens: tokens that are left of a prompt,
    whose end is cut off if cuts_end. length_penalty: of a search for the likeliest texts, see beams.py; None where they
    are drawn. tenant, salt: requests that have both in common share rows of the cache. adapter: the name of the one
    that computes the texts.

    unknown: names of fields that mean nothing here. warnings: what else the client said without effect. defaults: the
    protocol's, of sampling. own: what the protocol's writer needs beside.
    """

    messages: list[Json] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    infill: Infill | None = None
    is_cut: bool = False
    only_prompts: bool = False
    after: list[int] = field(default_factory=list)
    sampling: Json = field(default_factory=dict)
    constraint: Constraint = ("", {})
    best_of: int | None = None
    echo: bool = False
    num_prompt_logprobs: int | None = None
    shown_prompt_logprobs: int | None = None
    tools: list[Json] = field(default_factory=list)
    tool_choice: str | Json | None = None
    parallel_calls: bool | None = None
    variables: Json = field(default_factory=dict)
    hints: Json = field(default_factory=dict)
    effort: str | None = None
    budget: int | None = None
    opens_answer: bool = True
    continues_last: bool = False
    is_as_sent: bool = False
    adds_special: bool = True
    kept_tokens: int | None = None
    cuts_end: bool = False
    length_penalty: float | None = None
    stream: bool = False
    priority: int = 0
    timeout_s: float | None = None
    tenant: bytes = b""
    salt: str = ""
    adapter: str | None = None
    wants_ids: bool = False
    wants_receipt: bool = False
    wants_progress: bool = False
    unknown: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    defaults: Recommended = field(default_factory=lambda: OPENAI)
    own: Any = None

    @property
    def seed(self) -> int | None:
        """The seed that is asked for; -1: any."""
        found: int | None = self.sampling.get("seed")
        return found

    @seed.setter
    def seed(self, value: int | None) -> None:
        self.sampling["seed"] = value

    @property
    def cache_salt(self) -> bytes:
        """Return what requests have in common that share rows of the cache."""
        return self.tenant + self.salt.encode("utf-8", "surrogatepass")

    @property
    def num_sequences(self) -> int:
        """Sequences that the request would run, before anything of it is checked or encoded."""
        return max(len(self.prompts), 1) * max(self.sampling.get("n") or 1, self.best_of or 1, 1)

    @property
    def opens_objects(self) -> bool:
        """Return whether objects may have other properties than their schemas name."""
        return bool(self.sampling.get("additional_properties"))

    def take(self, given: Settings) -> None:
        """Take the settings that all protocols have in common."""
        for setting, name in HTTP_FIELDS.items():
            if (value := getattr(given, name)) is not None:
                self.sampling[setting] = value
        self.constraint = constraint_of(given)
        self.priority, self.timeout_s, self.salt = given.priority, given.timeout, given.cache_salt or ""
        self.kept_tokens, self.cuts_end = given.truncate_prompt_tokens, given.truncation_side == "right"
        self.wants_ids = given.return_token_ids
        if isinstance(given, ConversationSettings):
            self.tools, self.tool_choice = given.tools or [], given.tool_choice
            self.parallel_calls, self.effort = given.parallel_tool_calls, given.reasoning_effort
            self.variables = given.chat_template_kwargs or {}
            self.opens_answer, self.continues_last = given.add_generation_prompt, given.continue_final_message
            if given.max_completion_tokens is not None:
                self.sampling["max_new_tokens"] = given.max_completion_tokens

    def take_fields(self, named: Mapping[str, Any], extra: Mapping[str, Any] | None, known: Collection[str]) -> None:
        """Take settings by their names over HTTP. named: the protocol's own fields. extra: other fields of a body: our
        own settings count, and others are named in warnings. known: fields among them that change nothing here.
        """
        fields = {name: value for name, value in named.items() if value is not None}
        for name, value in (extra or {}).items():
            if name in known:
                continue
            if name in ConversationSettings.model_fields and name not in ("model", "n"):
                fields.setdefault(name, value)
            else:
                self.unknown.append(name)
        settings: ConversationSettings = ConversationSettings.model_validate(fields)
        settings.check()
        self.take(settings)

    def open_last(self) -> Json:
        """Return the fields by which an answer is continued that the client has begun."""
        last = self.messages[-1] if self.messages else {}
        is_begun = last.get("role") == "assistant" and not last.get("tool_calls")
        return {"add_generation_prompt": False, "continue_final_message": True} if is_begun else {}

    def take_effort(self, effort: object) -> None:
        """Take an effort of thinking from a protocol that does not say which efforts there are."""
        if not isinstance(effort, str):
            return
        if effort in BUDGETS and self.effort is None:
            self.effort = effort
        else:
            self.warn(f"an effort of {brief(effort)} is not known, so it changes nothing")

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def placeholder(self, what: str) -> str:
        """Return the text that stands for what the model cannot read."""
        self.warn(f"{what} is not shown to the model, which reads text alone")
        return PLACEHOLDER.format(what=what)


def field_of(given: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return a field of an object, of a type; ApiError if it is of another one."""
    value = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ApiError(400, f"{where}.{name}: a {names} is needed, not {brief(value)}", where)
    return value
