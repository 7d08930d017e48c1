"""A body of /api/generate becomes the one request: a conversation of one turn, or a plain prompt where no template is
wanted or there is none.
"""

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from tokenmill.engine.core import Core
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.ollama.body import OllamaGenerateBody
from tokenmill.serve.ollama.context import ids_before, prompt_after
from tokenmill.serve.ollama.facts import ModelFacts
from tokenmill.serve.ollama.parse import check_images, translate_fields
from tokenmill.serve.request.ask import Translated
from tokenmill.serve.request.fields import CompletionBody, SamplingBody
from tokenmill.serve.request.prepare import Prepared, prepare_completion

AS_FITS = -1


@dataclass(frozen=True)
class Generation:
    """The body and the preparation of the one request. made: what was translated."""

    made: Translated
    body: SamplingBody
    prepare: Callable[[Core, Any, bytes], Prepared]


def translate_generate(body: OllamaGenerateBody, facts: ModelFacts) -> Generation:
    """See the module."""
    _check(body, facts)
    made = translate_fields(body, facts.thinks, facts.num_positions)
    if body.raw or not facts.has_template:
        return Generation(made, _plain(made, body.prompt), partial(_prepare_plain, made, body.context or ()))
    system = [{"role": "system", "content": body.system}] if body.system else []
    if body.context:
        made.prompt_of = partial(prompt_after, body.context)
        if system:
            made.warn("system is not said again: the context has what was said to the model at its beginning")
            system = []
    made.messages = [*system, {"role": "user", "content": body.prompt}]
    return Generation(made, made.body(), made.prepare)


def _check(body: OllamaGenerateBody, facts: ModelFacts) -> None:
    """ApiError for what is not served, and for fields that contradict each other."""
    check_images(body.images, "images")
    if body.raw and (body.template or body.system or body.context):
        raise ApiError(400, "raw mode does not support template, system, or context", "raw")
    if body.suffix:
        message = f'"{body.model}" does not support insert: no text is put between a prompt and a suffix here'
        raise ApiError(400, message, "suffix", "unsupported_parameter")
    if body.template:
        message = "template is not served: the model's own is used, or a Jinja template by `tokenmill serve "
        raise ApiError(400, f"{message}--chat-template FILE`", "template", "unsupported_parameter")
    if body.system and not facts.has_template:
        raise ApiError(400, "system needs a chat template, and this model has none: put it into the prompt", "system")


def _plain(made: Translated, prompt: str) -> CompletionBody:
    fields = dict(made.fields)
    wants_logprobs, num_top = fields.pop("logprobs", False), fields.pop("top_logprobs", None)
    if wants_logprobs:
        fields["logprobs"] = num_top or 0
    try:
        body: CompletionBody = CompletionBody.model_validate({**fields, "prompt": prompt})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    body.max_tokens = AS_FITS if body.max_tokens is None else body.max_tokens
    return body


def _prepare_plain(made: Translated, context: List[int], core: Core, body: CompletionBody, tenant: bytes) -> Prepared:
    """See prepare.py; the prompt stands behind the ids of the context."""
    if context:
        before = ids_before(context, core)
        body.prompt = [*before, *core.inputs.encode(str(body.prompt), body.add_special_tokens, after=before)]
    return made.noted(prepare_completion(core, body, tenant, made.protocol))
