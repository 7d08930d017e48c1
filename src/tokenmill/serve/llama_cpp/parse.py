"""The body of llama.cpp's POST /infill becomes an Ask, as llama.vscode, llama.vim and minuet send it.

llama.cpp's options of how it computes change nothing here. Without a temperature the likeliest token is taken: editors
send top_k, top_p and a sampler of llama.cpp's own, after which little else is left.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.fields import SETTINGS, Body, ListOf, Settings, also
from tokenmill.serve.request.fields import Int64 as Whole
from tokenmill.serve.request.prompt import Model
from tokenmill.text.infill import NO_MARKS, Infill
from tokenmill.value_reader import brief

IGNORED = frozenset(
    """id_slot cache_prompt samplers t_max_prompt_ms n_probs n_keep n_discard min_keep post_sampling_probs
    timings_per_token return_tokens response_fields speculative.n_max speculative.n_min
    speculative.p_min n_cache_reuse""".split()
)
"""llama.cpp's options that say how it computes, or what else it tells; nothing of the text depends on them here."""


@dataclass(frozen=True)
class LineLimits:
    """Where an answer ends beside its tokens. indent: the blanks with which each further line must begin; max_ms: the
    time after which it ends with the next line; 0 for none.
    """

    indent: int = 0
    max_ms: float = 0.0


class InfillBody(Settings):
    """POST /infill. input_extra: other files, {"filename": …, "text": …}. prompt: the end of the text before. n_indent,
    t_max_predict_ms: see LineLimits.
    """

    UNSERVED: ClassVar = Body.UNSERVED | {"lora": ([],)}

    input_prefix: str
    input_suffix: str
    input_extra: ListOf[dict[str, Any]] = Field(default_factory=list)
    prompt: str = ""
    stream: bool = False
    return_progress: bool = False
    max_tokens: Whole | None = also("max_tokens", *SETTINGS["max_new_tokens"].http_aliases)
    n_indent: Annotated[int, Field(ge=0)] = 0
    t_max_predict_ms: Annotated[float, Field(ge=0)] = 0.0


def parse_infill(body: InfillBody, model: Model) -> Ask:
    """Read what stands around a text that is filled in."""
    model.check_name(body.model)
    body.check()
    unknown = [name for name in body.unknown if name not in IGNORED]
    model.check_known(unknown)
    if not model.fills_in:
        raise ApiError(400, NO_MARKS, "model", "not_supported")
    ask = Ask(
        stream=body.stream, unknown=unknown, own=LineLimits(body.n_indent, body.t_max_predict_ms), only_prompts=True
    )
    ask.take(body)
    ask.sampling.setdefault("temperature", 0.0)
    ask.sampling["max_new_tokens"] = -1 if body.max_tokens is None else body.max_tokens
    files = tuple(_file(each, f"input_extra[{number}]") for number, each in enumerate(body.input_extra))
    ask.infill = Infill(body.input_prefix + body.prompt, body.input_suffix, files)
    return ask


def _file(given: dict[str, Any], where: str) -> tuple[str, str]:
    name, text = given.get("filename", "tmp"), given.get("text")
    if not isinstance(text, str) or not isinstance(name, str):
        raise ApiError(
            400, f'{where} = {brief(given)} is not allowed: {{"filename": …, "text": …}}, two texts', "input_extra"
        )
    return name, text
