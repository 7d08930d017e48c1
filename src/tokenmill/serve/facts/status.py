"""The routes that say how the server is and what it serves: health, metrics, settings, and the model.

No setting that is told is a path or a secret. The model has the form of OpenAI's API, or of Anthropic's to its clients.
"""

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime

import torch
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.facts.described import Described, describe_service
from tokenmill.serve.http.errors import EngineDied, Json
from tokenmill.serve.loop.service import Call
from tokenmill.serve.messages.parse import FOREIGN
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.recommended import LLAMA_CPP, OLLAMA, OPENAI, in_force
from tokenmill.version import __version__

ANTHROPIC = "anthropic-version"  # a header of Anthropic's clients
# A text that need not be given is a path, or the name of a model, which may be one.
SETTINGS = [field.name for field in fields(EngineConfig) if field.name != "model" and field.type != str | None]
OPTIONS = ("max_queued", "max_body", "keep_alive_s", "stall_s", "drain_s", "is_strict", "max_file", "max_stored")
AS_HEALTH = "The same as /health, under the name that SageMaker asks for."


async def health(call: Call) -> Json:
    """Say whether the engine lives. It does until its last request has ended."""
    driver = call.service.driver
    if driver.has_failed and driver.error is not None:
        raise driver.error
    if driver.is_hung:
        raise EngineDied("the engine hangs: a step takes much longer than any before it")
    return {"status": "ok"}


async def load(call: Call) -> Json:
    """Tell the number of texts that run or wait, for a router that chooses among servers."""
    return {"server_load": call.service.admission.num_open}


async def server_info(call: Call) -> Json:
    """Tell settings of the engine, limits, and how requests that name no sampling are sampled; no paths and no keys."""
    service, loaded = call.service, call.service.engine.core.loaded
    return {
        "version": __version__,
        "model": service.options.name,
        "engine": {
            **{name: getattr(loaded.config, name) for name in SETTINGS},
            "program": loaded.program_name,
            "kernel": loaded.kernel_name,
            **loaded.memory,
            "torch": str(torch.__version__),
        },
        "server": {
            **{name: getattr(service.options, name) for name in OPTIONS},
            "max_open": service.admission.max_open,
            "wants_key": bool(service.options.keys),
            "keeps_sessions": service.sessions is not None,
            "keeps_batches": service.batches is not None,
        },
        "sampling": {
            path: {name: found._asdict() for name, found in in_force(loaded.generation_defaults, protocol).items()}
            for path, protocol in {"/v1": OPENAI, "/api": OLLAMA, "/completion": LLAMA_CPP}.items()
        },
    }


async def ready(call: Call) -> Json:
    """Say whether new requests are taken."""
    call.service.check_ready()
    return {"status": "ok"}


async def metrics(call: Call) -> Response:
    """Give figures for Prometheus."""
    return Response(call.service.driver.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def version(call: Call) -> Json:
    """Tell the version of tokenmill."""
    return {"version": __version__}


async def models(call: Call) -> Json:
    """Tell the model that is served, and its adapters, which requests may name as models."""
    return listed([describe_service(call.service)], call.request)


async def model(call: Call) -> Json:
    """Tell the model of that name."""
    is_other = ANTHROPIC in call.request.headers
    if is_other and call.name.startswith(FOREIGN):
        return card(describe_service(call.service), None, call.request)
    call.service.model.check_name(call.name)
    return card(describe_service(call.service), call.service.model.adapter(call.name), call.request)


def listed(described: Sequence[Described], request: Request) -> Json:
    """List models and their adapters in the form of the API that a request is written for."""
    cards = [card(each, name, request) for each in described for name in (None, *each.adapters)]
    if ANTHROPIC in request.headers:
        first, last = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
        return {"data": cards, "has_more": False, "first_id": first, "last_id": last}
    # What Codex looks for: the length that is configured, not the one that the model was trained for.
    short = [
        {"slug": each["id"], "display_name": each["id"], "context_window": each["max_model_len"]} for each in cards
    ]
    return {"object": "list", "data": cards, "models": short}


def card(described: Described, adapter: str | None, request: Request) -> Json:
    """Return a model, or an adapter of it, in the form of OpenAI's API, with vLLM's fields, or of Anthropic's."""
    name, most, created = adapter or described.name, described.max_length, int(described.created)
    if ANTHROPIC in request.headers:
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": most - 1,
            "max_tokens": most - 1,
        }
    head: Json = {"id": name, "object": "model", "created": created, "owned_by": "tokenmill"}
    if adapter is not None:
        head |= {"root": described.adapters[adapter].folder, "parent": described.name}
    return {**head, "max_model_len": most, "state": described.state, "capabilities": list(described.can)}
