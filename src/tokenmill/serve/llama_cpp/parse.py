"""The bodies of llama.cpp's POST /completion and POST /infill become Asks.

llama.cpp's clients send many options in one body, under the names of several servers at once: of names that mean the
same, llama.cpp's counts, and a field that means nothing here is named in a warning. What llama.cpp's options ask of
how it computes changes nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from tokenmill.serve.http.errors import ApiError, about
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.fields import NEEDS, SETTINGS, Body, ListOf, NumTop, Settings, also
from tokenmill.serve.request.fields import Int64 as Whole
from tokenmill.serve.request.prompt import Model
from tokenmill.settings.recommended import LLAMA_CPP
from tokenmill.text.infill import Infill
from tokenmill.value_reader import brief

IGNORED = frozenset(
    """id_slot slot_id cache_prompt t_max_prompt_ms n_keep n_discard min_keep speculative.n_max speculative.n_min
    speculative.p_min n_cache_reuse mirostat_tau mirostat_eta dynatemp_exponent adaptive_decay""".split()
)
"""llama.cpp's options that say how it computes, or how a sampler does that is not served; no text depends on them."""
SAMPLERS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
"""llama.cpp's samplers → the settings without it. A body that lists samplers leaves out the others."""
NO_SAMPLING = {"mirostat": (0,), "typical_p": (0, 1), "dynatemp_range": (0,)}
"""Options of samplers that are not served → the values that turn them off."""


@dataclass(frozen=True)
class LlamaOptions:
    """The options of a body that its writer reads. indent: the blanks with which each further line must begin; max_ms:
    the time after which an answer ends with the next line; 0 for none. times_each: each event has the timings. fields:
    the wanted ones of the last object, as paths; all of it without a path.
    """

    indent: int = 0
    max_ms: float = 0.0
    times_each: bool = False
    fields: tuple[str, ...] = ()


class LlamaFields(Settings):
    """The fields of both routes. n_probs: likeliest tokens that are told at each token. samplers: the names of the
    samplers that are used; their order is our own. adaptive_target: of a sampler that is not served, and that is off
    below 0. n_indent, t_max_predict_ms: see LlamaOptions. response_fields: see LlamaOptions.fields.
    """

    UNSERVED: ClassVar = Body.UNSERVED | NO_SAMPLING | {"lora": ([],), "post_sampling_probs": (False,)}

    stream: bool = False
    return_progress: bool = False
    max_tokens: Whole | None = also("n_predict", "max_tokens", *SETTINGS["max_new_tokens"].http_aliases[1:])
    logit_bias: dict[str, Any] | list[Any] | None = None
    n_probs: NumTop = 0
    samplers: ListOf[str] | None = None
    adaptive_target: Annotated[float, Field(lt=0)] | None = None
    timings_per_token: bool = False
    response_fields: ListOf[str] = Field(default_factory=list)
    n_indent: Annotated[int, Field(ge=0)] = 0
    t_max_predict_ms: Annotated[float, Field(ge=-1)] = 0.0

    def check(self) -> None:
        """Raise ApiError for a field that asks for what is not served."""
        given = self.model_extra or {}
        for name, nothing in self.UNSERVED.items():
            value = given.get(name)
            if value is None or value in nothing:
                continue
            why = f": {NEEDS[name]}" if name in NEEDS else ""
            raise ApiError(400, f"{name} = {brief(value)} is not supported{why}", name, "unsupported_parameter")

    @property
    def unknown(self) -> list[str]:
        """Return the names of unknown fields; another name of a known one is none."""
        aliases = [getattr(field.validation_alias, "choices", ()) for field in type(self).model_fields.values()]
        known = IGNORED.union(*aliases)
        return [name for name in super().unknown if name not in known]


class LlamaBody(LlamaFields):
    """POST /completion. prompt: a text; token ids, among which texts may be; or a list of prompts."""

    prompt: str | list[Any] | dict[str, Any]


class InfillBody(LlamaFields):
    """POST /infill. input_extra: other files, {"filename": …, "text": …}. prompt: the end of the text before."""

    input_prefix: str
    input_suffix: str
    input_extra: ListOf[dict[str, Any]] = Field(default_factory=list)
    prompt: str = ""


def parse_completion(body: LlamaBody, model: Model) -> Ask:
    """Read a prompt, or several, that are continued."""
    ask = _begun(body, model)
    ask.defaults = LLAMA_CPP
    for name in SAMPLERS.keys() - set(SAMPLERS if body.samplers is None else body.samplers):
        ask.sampling |= SAMPLERS[name]
    given = body.prompt
    is_one = not isinstance(given, list) or any(isinstance(part, int) for part in given)
    ask.prompts = [_prompt(each) for each in ([given] if is_one else given)]
    if not ask.prompts:
        raise ApiError(400, "prompt: an empty list has nothing to continue", "prompt")
    return ask


def parse_infill(body: InfillBody, model: Model) -> Ask:
    """Read what stands around a text that is filled in. Without a temperature the likeliest token is taken: editors
    send top_k, top_p and a sampler of llama.cpp's own, after which little else is left.
    """
    ask = _begun(body, model)
    model.check_fills_in("model", "not_supported")
    ask.sampling.setdefault("temperature", 0.0)
    files = tuple(_file(each, f"input_extra[{number}]") for number, each in enumerate(body.input_extra))
    ask.infill = Infill(body.input_prefix + body.prompt, body.input_suffix, files)
    return ask


def _begun(body: LlamaFields, model: Model) -> Ask:
    """Check a body, and read what both routes have."""
    model.check_name(body.model)
    body.check()
    model.check_known(body.unknown)
    options = LlamaOptions(
        body.n_indent, max(body.t_max_predict_ms, 0.0), body.timings_per_token, tuple(body.response_fields)
    )
    ask = Ask(stream=body.stream, unknown=body.unknown, own=options, only_prompts=True)
    ask.take(body)
    ask.wants_progress = body.return_progress
    ask.sampling["max_new_tokens"] = -1 if body.max_tokens is None else body.max_tokens
    ask.sampling["logprobs"] = body.n_probs or None
    if isinstance(body.stop, list):
        ask.sampling["stop"] = [word for word in body.stop if word]
    if body.logit_bias is not None:
        ask.sampling["logit_bias"] = dict(_biases(body.logit_bias, model))
    return ask


def _prompt(given: Any) -> str | list[int | str]:
    """Read one prompt."""
    if isinstance(given, dict) and isinstance(given.get("prompt_string"), str):
        if given.get("multimodal_data"):
            raise ApiError(400, "multimodal_data is not supported: the model reads text alone", "prompt")
        given = given["prompt_string"]
    parts = given if isinstance(given, list) else [given]
    if not all(isinstance(part, str | int) and not isinstance(part, bool) for part in parts):
        raise ApiError(400, f"prompt = {brief(given)} is not allowed: a text, or token ids and texts", "prompt")
    return cast("str | list[int | str]", given)


def _ids(text: str, model: Model) -> list[int]:
    if model.loaded.tokenizer is None:
        raise ApiError(400, "logit_bias: this model has no tokenizer, so give token ids", "logit_bias")
    with about("logit_bias"):
        return list(model.loaded.tokenizer.encode(text, False))


def _biases(given: Mapping[str, Any] | list[Any], model: Model) -> Iterator[tuple[Any, Any]]:
    """Read biases of token ids, or of each token of a text; false forbids a token."""
    for each in given.items() if isinstance(given, Mapping) else given:
        if not isinstance(each, list | tuple) or len(each) != 2:
            raise ApiError(400, f"logit_bias: {brief(each)} is not allowed: a token and its bias", "logit_bias")
        token, bias = each
        if not isinstance(token, str) and type(token) is not int:
            raise ApiError(400, f"logit_bias: {brief(token)} is no token: give an id or a text", "logit_bias")
        amount = float("-inf") if bias is False else bias
        is_id = isinstance(token, int) or (isinstance(given, Mapping) and str(token).isdecimal())
        for number in [token] if is_id else _ids(str(token), model):
            yield str(number), amount


def _file(given: dict[str, Any], where: str) -> tuple[str, str]:
    name, text = given.get("filename", "tmp"), given.get("text")
    if not isinstance(text, str) or not isinstance(name, str):
        raise ApiError(
            400, f'{where} = {brief(given)} is not allowed: {{"filename": …, "text": …}}, two texts', "input_extra"
        )
    return name, text
