"""The settings that GET /server_info tells, none of which is a path or a secret."""

from dataclasses import fields
from typing import Any

import torch

from tokenmill.loader.loaded import LoadedModel
from tokenmill.serve.loop.service import Service
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.recommended import OLLAMA, OPENAI, Recommended, in_force

# A text that need not be given is a path, or the name of a model, which may be one.
SETTINGS = [field.name for field in fields(EngineConfig) if field.name != "model" and field.type != str | None]
OPTIONS = ("max_queued", "max_body", "keep_alive_s", "stall_s", "drain_s", "is_strict", "max_file", "max_stored")


def engine_facts(loaded: LoadedModel) -> dict[str, Any]:
    """The program that runs, the settings as they were resolved, and bytes of weights and cache."""
    return {
        **{name: getattr(loaded.config, name) for name in SETTINGS},
        "program": loaded.program_name,
        "kernel": loaded.kernel_name,
        **loaded.memory,
        "torch": str(torch.__version__),
    }


def server_facts(service: Service) -> dict[str, Any]:
    """Limits of the server, by the names of `Options`; whether clients need a key; what it keeps."""
    return {
        **{name: getattr(service.options, name) for name in OPTIONS},
        "max_open": service.admission.max_open,
        "wants_key": bool(service.options.keys),
        "keeps_sessions": service.sessions is not None,
        "keeps_batches": service.batches is not None,
    }


def sampling_facts(recommended: Recommended) -> dict[str, Any]:
    """The sampling of a request that names none, by the beginning of its path: each setting's value and its origin."""
    protocols = {"/v1": OPENAI, "/api": OLLAMA}
    return {
        path: {name: found._asdict() for name, found in in_force(recommended, protocol).items()}
        for path, protocol in protocols.items()
    }
