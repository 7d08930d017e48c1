"""The routes of llama.cpp's own API that tell of the model and its prompts, which front ends ask when they connect."""

from typing import Any

from starlette.responses import JSONResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.serve.facts.tokens import TokenizeBody, encode, warnings_for
from tokenmill.serve.loop.service import Call
from tokenmill.settings.recommended import LLAMA_CPP, in_force
from tokenmill.version import __version__


async def props(call: Call) -> dict[str, Any]:
    """Tell the context, the settings of a request that names none, and the chat template, as llama.cpp's /props."""
    loaded, tokenizer = call.service.engine.core.loaded, call.service.engine.tokenizer
    settings = {name: found.value for name, found in in_force(loaded.generation_defaults, LLAMA_CPP).items()}
    special = {} if tokenizer is None else tokenizer.special_texts
    return {
        "default_generation_settings": {"n_ctx": loaded.resolved.longest_text, "params": settings},
        "total_slots": loaded.config.max_sequences,
        "model_alias": call.service.options.name,
        "model_path": call.service.options.name,  # no path is told
        "chat_template": (tokenizer and tokenizer.chat_template) or "",
        "bos_token": special.get("bos_token", ""),
        "eos_token": special.get("eos_token", ""),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"tokenmill {__version__}",
        "is_sleeping": False,
    }


async def apply_template(call: Call) -> Response:
    """Give the prompt of a conversation as text."""
    call.service.model.check(call.body)
    return await call.service.in_thread(call.request, _rendered, call.service.engine, call.body)


def _rendered(engine: Engine, body: TokenizeBody) -> Response:
    ids = encode(engine, body)
    assert engine.tokenizer is not None, "a conversation was encoded"
    return JSONResponse({"prompt": engine.tokenizer.decode(ids, False), **warnings_for(engine, body)})
