"""The facts of a run that its answers depend on, and the eight digits that stand for them in every key."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tokenmill.batches.row import Json
from tokenmill.batches.task import Task
from tokenmill.engine.core import Core


def facts_of(core: Core, task: Task) -> Json:
    """The model by the digests of its files, what computes it, and the settings of the task. Nothing of it says how
    many rows run together, in how many threads, or where the model lies.
    """
    loaded = core.loaded
    model = {name: value for name, value in loaded.compatibility.items() if name != "model"}
    template = loaded.tokenizer.chat_template if loaded.tokenizer is not None else None
    model["chat_template"] = None if template is None else sha256(str(template).encode()).hexdigest()[:16]
    return {"model": model, "longest_text": loaded.resolved.longest_text, "task": task.facts(core)}


def run_of(facts: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that stand for facts."""
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
