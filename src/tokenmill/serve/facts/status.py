"""The routes that say how the server is and what it serves: health, metrics, settings, and the model.

No setting that is told is a path or a secret. The model has the form of OpenAI's API, or of Anthropic's to its clients.
"""

from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import torch
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tokenmill.serve.http.errors import EngineDied, Json
from tokenmill.serve.loop.service import Call, Service
from tokenmill.serve.messages.parse import FOREIGN
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.recommended import OLLAMA, OPENAI, in_force
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
            for path, protocol in {"/v1": OPENAI, "/api": OLLAMA}.items()
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
    name, length = call.service.options.name, call.service.engine.config.max_length
    names = [None, *call.service.model.adapters]
    if ANTHROPIC in call.request.headers:
        cards = [_other_card(call.service, each) for each in names]
        return {"data": cards, "has_more": False, "first_id": name, "last_id": cards[-1]["id"]}
    # What Codex looks for: the length that is configured, not the one that the model was trained for.
    described = [{"slug": each or name, "display_name": each or name, "context_window": length} for each in names]
    return {"object": "list", "data": [_card(call.service, each) for each in names], "models": described}


async def model(call: Call) -> Json:
    """Tell the model of that name."""
    is_other = ANTHROPIC in call.request.headers
    if not (is_other and call.name.startswith(FOREIGN)):
        call.service.model.check_name(call.name)
        adapter = call.service.model.adapter(call.name)
        return _other_card(call.service, adapter) if is_other else _card(call.service, adapter)
    return _other_card(call.service)


def _card(service: Service, adapter: str | None = None) -> Json:
    """Return the model, or an adapter of it, in the form of OpenAI's API, with vLLM's fields."""
    own, created = service.options.name, int(service.created)
    head: Json = {"id": adapter or own, "object": "model", "created": created, "owned_by": "tokenmill"}
    if adapter is not None:
        head |= {"root": Path(service.engine.adapters[adapter].path).name, "parent": own}
    return {**head, "max_model_len": service.engine.config.max_length}


def _other_card(service: Service, adapter: str | None = None) -> Json:
    """Return the model, or an adapter of it, in the form of Anthropic's API."""
    name, most = adapter or service.options.name, service.engine.config.max_length - 1
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(int(service.created), UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": most,
        "max_tokens": most,
    }
