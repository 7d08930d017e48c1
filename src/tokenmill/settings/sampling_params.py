"""SamplingParams: every setting of a sequence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import CONSTRAINTS, check_one, check_texts, schema_text
from tokenmill.settings.field import Shown, aliases_of, by_any_name, check_fields, setting, settings_of

DEFAULT_MAX_NEW_TOKENS = 128
MAX_BAD_WORDS = 1000
MAX_BREAKERS = 64  # each is looked for in every token of the vocabulary
MAX_STOP = 10_000  # characters of all stop texts, since each of them is looked for at every token


@by_any_name
@dataclass(frozen=True)
class SamplingParams:
    """The settings by which the tokens of one sequence are chosen. Beyond the help of a field:

    min_new_tokens: until then end-of-sequence and stop tokens are masked, and no stop text ends it. temperature 0 is
    argmax exactly. top_n_sigma: Tang et al. 2024, arXiv 2411.07641. xtc_probability, xtc_threshold: "exclude top
    choices", as llama.cpp has it, of the probabilities that temperature and the other filters have left.
    repetition_penalty: Keskar et al. 2019, arXiv 1909.05858; presence_penalty and frequency_penalty:
    over the output only, as OpenAI's API defines them. logit_bias: -inf forbids a token. stop_token_ids: beside the
    model's own. bad_words: the token that would complete one, as the tokenizer spells it alone and
    after a space, is forbidden (vLLM's rule); the same letters in other tokens are not. seed: the token at position p
    draws one number from (seed, p). logprobs: 0 for the chosen token's alone. n: the i-th continuation uses seed + i.

    At most one of json_schema, regex, grammar and choice constrains the text. A json_schema may be a mapping, JSON
    text, a pydantic model or a dataclass, and is kept as JSON text; see docs/structured-output.md.
    additional_properties: objects of a schema have those properties alone that it names, as in llama.cpp and xgrammar,
    unless the schema says which others, or this is set. thinking_budget: at so many tokens of thinking the mark comes
    that ends it; a constraint begins after that mark.
    """

    # fmt: off
    max_new_tokens: int | None = setting(None,
        "Maximum number of new tokens; -1: all that the context leaves. Default: at most 128.", minimum=-1,
        aliases=("max_tokens",), short="-n", options=("--max-tokens", "--num-predict", "--n-predict", "--predict"),
        http="max_tokens", http_aliases=("n_predict", "num_predict", "max_new_tokens", "max_output_tokens"),
        page=Shown("Most new tokens", 2, "what fits"))
    min_new_tokens: int = setting(0, "Minimum number of new tokens before the text may end.", minimum=0,
        http="min_tokens", http_aliases=("min_new_tokens",))
    temperature: float = setting(0.0, "0 takes the likeliest token; higher is more random.", minimum=0, maximum=100,
        options=("--temp",), page=Shown("Temperature", 0), model_files="temp", stage="draw")
    top_k: int = setting(0, "Sample from the k likeliest tokens. 0 and -1: off.", minimum=-1, page=Shown("Top k", 1),
        model_files="top_k", stage="draw")
    top_p: float = setting(1.0, "Sample from the likeliest tokens that together have this probability. 1: off.",
        minimum=0, maximum=1, exclusive=True, page=Shown("Top p", 0), model_files="top_p", stage="draw")
    min_p: float = setting(0.0, "Drop tokens less likely than this times the likeliest one. 0: off.", minimum=0,
        maximum=1, page=Shown("Min p", 1), model_files="min_p", stage="draw")
    top_n_sigma: float = setting(0.0,
        "Drop tokens whose logit lies more than this many standard deviations below the largest logit. 0 or -1: no "
        "filter.",
        minimum=-1, maximum=100, page=Shown("Top n sigma", 1), stage="draw")
    xtc_probability: float = setting(0.0, "How often XTC drops the likeliest tokens of a choice. 0: off.", minimum=0,
        maximum=1, page=Shown("XTC probability", 1), model_files="xtc_probability", stage="draw")
    xtc_threshold: float = setting(0.1,
        "XTC drops all tokens with this probability or more, except the least likely of them.", minimum=0, maximum=1,
        page=Shown("XTC threshold", 1), model_files="xtc_threshold", stage="draw")
    repetition_penalty: float = setting(1.0, "Above 1: tokens of prompt and output become less likely.", minimum=0.01,
        maximum=100, http_aliases=("repeat_penalty",), page=Shown("Repetition penalty", 1),
        model_files="penalty_repeat", stage="penalty")
    presence_penalty: float = setting(0.0, "Subtracted from the logit of every token that is in the output.",
        minimum=-100, maximum=100, stage="penalty")
    frequency_penalty: float = setting(0.0, "Subtracted from a token's logit for each time it is in the output.",
        minimum=-100, maximum=100, stage="penalty")
    dry_multiplier: float = setting(0.0,
        "DRY: what goes on with a repetition becomes less likely by this times dry-base to the power of its length. "
        "0: off.", minimum=0, maximum=100, page=Shown("DRY multiplier", 1), stage="penalty")
    dry_base: float = setting(1.75, "DRY: how fast its penalty grows with the length of a repetition.", minimum=1,
        maximum=100, stage="penalty")
    dry_allowed_length: int = setting(2, "DRY: repetitions of fewer tokens have no penalty.", minimum=1,
        maximum=1000, stage="penalty")
    dry_penalty_last_n: int = setting(-1, "DRY: looks for repetitions in so many tokens. -1: all; 0: off.", minimum=-1,
        stage="penalty")
    dry_sequence_breakers: tuple[str, ...] = setting(("\n", ":", '"', "*"),
        "DRY: this text, in one token or several, ends a repetition. May be repeated; default: newline, :, \" and *.",
        in_chat=False, options=("--dry-sequence-breaker",))
    logit_bias: Mapping[int, float] = setting(dict, "ID=AMOUNT, added to that token's logit. May be repeated.",
        in_chat=False)
    allowed_token_ids: tuple[int, ...] | None = setting(None, "The only ids that may be chosen, as 1,2,3.",
        in_chat=False)
    bad_words: tuple[str, ...] = setting((),
        "A word that must not come in its usual tokens, alone or after a space. May be repeated.")
    stop: tuple[str, ...] = setting((), "Text that ends the output. May be repeated.",
        http_aliases=("stop_sequences", "stop_strings", "stop_words"))
    include_stop: bool = setting(False, "Keep the text that stopped the output.", http="include_stop_str_in_output")
    stop_token_ids: tuple[int, ...] = setting((), "Ids that end the output, as 1,2,3.", in_chat=False)
    ignore_eos: bool = setting(False, "Continue past the model's end-of-text token.")
    skip_special_tokens: bool = setting(True, "Leave special tokens out of the text.", in_chat=False)
    shown_token_ids: tuple[int, ...] = setting((), "Special tokens that stay in the text all the same, as 1,2,3.",
        in_chat=False, http=None)
    seed: int | None = setting(None,
        "The same seed gives the same tokens. Default: a new one each time, which --json reports.", minimum=0,
        maximum=2**63 - 1, http_aliases=("random_seed",), page=Shown("Seed", 2, "random"))
    logprobs: int | None = setting(None,
        "Show the log-probability of each token, and the N likeliest tokens in its place.", minimum=0, maximum=1000,
        in_chat=False, http=None)
    json_schema: str | None = setting(None,
        "The text is JSON that fits this schema: a file of it, or the schema itself.", metavar="FILE|TEXT", http=None,
        options=("-j", "--json-schema-file"), reads_file=("{",), in_chat=False)
    regex: str | None = setting(None, "The text matches this regular expression.", metavar="REGEX", http=None,
        in_chat=False)
    grammar: str | None = setting(None, "The text fits this grammar, in Lark or GBNF.", metavar="FILE", http=None,
        options=("--grammar-file",), reads_file=(":", "::="), in_chat=False)
    choice: tuple[str, ...] | None = setting(None, "The text is this one, or another that is given so.", http=None,
        in_chat=False)
    additional_properties: bool = setting(False,
        "Objects of a schema that name their properties may have others, where the schema does not say so.",
        in_chat=False)
    thinking_budget: int | None = setting(None, "The most tokens that the model thinks for before it answers.",
        minimum=0, http_aliases=("thinking_token_budget",))
    n: int = setting(1, "Continuations of each prompt.", maximum=1000, in_chat=False,
        http_aliases=("n_cmpl", "num_return_sequences"))
    # fmt: on

    def __post_init__(self) -> None:
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text("json_schema", self.json_schema))
        check_texts({name: getattr(self, name) for name in ("regex", "grammar")})
        check_fields(self)
        check_one({name: value for name in CONSTRAINTS if (value := getattr(self, name)) is not None})
        if self.choice == ():
            raise ConfigError("choice", [], "at least one text; without the setting any text may come")
        if self.allowed_token_ids == ():
            raise ConfigError("allowed_token_ids", [], "at least one id; without the setting every id is allowed")
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ConfigError("bad_words", f"{len(self.bad_words)} words", f"at most {MAX_BAD_WORDS} words")
        for name in ("stop", "dry_sequence_breakers"):
            if (length := sum(map(len, getattr(self, name)))) > MAX_STOP:
                raise ConfigError(name, f"texts of {length:,} characters", f"at most {MAX_STOP:,} in all")
        if (number := len(self.dry_sequence_breakers)) > MAX_BREAKERS:
            raise ConfigError("dry_sequence_breakers", f"{number} texts", f"at most {MAX_BREAKERS} texts")
        longest = math.inf if self.max_new_tokens in (None, -1) else self.max_new_tokens
        if longest == 0:
            raise ConfigError("max_new_tokens", 0, "1 or more; or -1 for all that the context leaves")
        if self.min_new_tokens > longest:
            raise ConfigError("min_new_tokens", self.min_new_tokens, f"at most max_new_tokens, which is {longest}")

    @cached_property
    def looks_back(self) -> bool:
        """True if a choice, or what is reported of it, needs the values of the tokens before it on the host."""
        penalties = (self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.logprobs is not None or bool(self.bad_words) or any(penalties) or self.uses_dry

    @cached_property
    def uses_dry(self) -> bool:
        """True if repetitions have a penalty."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    def is_constrained_as(self, other: "SamplingParams") -> bool:
        """Tell whether the same constraint, or none, holds with these settings and with others."""
        names = (*CONSTRAINTS, "additional_properties", "thinking_budget")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @cached_property
    def changes_logits(self) -> bool:
        """True if a setting that does not look back may make another token than the model's likeliest the largest."""
        return bool(self.logit_bias) or self.allowed_token_ids is not None


ALIASES = aliases_of(SamplingParams)
HTTP_FIELDS = {name: told.http or name for name, told in settings_of(SamplingParams).items() if told.http is not None}
"""Setting → field of a request body, for the fields that every body has."""


class SamplingKeywords(TypedDict, total=False):
    """The settings as keywords of `generate` and others, for type checkers."""

    max_new_tokens: int | None
    max_tokens: int | None
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str] | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: str | Sequence[str] | None
    stop: str | Sequence[str] | None
    include_stop: bool
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    skip_special_tokens: bool
    shown_token_ids: Sequence[int] | None
    seed: int | None
    logprobs: int | None
    json_schema: Any
    regex: str | None
    grammar: str | None
    choice: str | Sequence[str] | None
    additional_properties: bool
    thinking_budget: int | None
    n: int


def params_over(start: Mapping[str, Any], settings: Mapping[str, Any]) -> SamplingParams:
    """Make the params of `settings`, by any of their names, over `start`; one constraint replaces another."""
    named = {ALIASES.get(name, name) for name in settings}
    if any(settings.get(name) is not None for name in CONSTRAINTS):
        named.update(CONSTRAINTS)
    if wrong := [name for name, value in settings.items() if isinstance(value, SamplingParams)]:
        raise ConfigError(wrong[0], "SamplingParams", "the keyword is params")
    return SamplingParams(**({name: value for name, value in start.items() if name not in named} | dict(settings)))
