"""The settings that GET /server_info tells, none of which is a path or a secret."""

from typing import Any

import torch

from tokenmill.loader.loaded import LoadedModel
from tokenmill.serve.service import Service

__all__ = ["engine_facts", "server_facts"]

SETTINGS = (
    "dtype", "scheme", "device", "threads", "max_length", "cache_format", "block_size", "cache_tokens",
    "prefix_cache", "max_sequences", "max_step_tokens", "speculate",
)  # fmt: skip
OPTIONS = ("max_queued", "max_body", "keep_alive_s", "stall_s", "drain_s", "is_strict")


def engine_facts(loaded: LoadedModel) -> dict[str, Any]:
    """The program that runs, the settings as they were resolved, and bytes of weights and cache."""
    return {
        "program": loaded.program_name,
        "kernel": loaded.kernel_name,
        **{name: getattr(loaded.config, name) for name in SETTINGS},
        **loaded.memory,
        "torch": str(torch.__version__),
    }


def server_facts(service: Service) -> dict[str, Any]:
    """Limits of the server, by the names of `Options`; whether clients need a key; whether it keeps sessions."""
    return {
        **{name: getattr(service.options, name) for name in OPTIONS},
        "max_open": service.admission.max_open,
        "wants_key": bool(service.options.keys),
        "keeps_sessions": service.sessions is not None,
    }
