"""The two ends of a model's life in a server of several: its engine is made ready to serve, and let go of."""

import gc
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tokenmill.engine.engine import Engine
from tokenmill.errors import TokenmillError
from tokenmill.serve.models.hosted import Hosted
from tokenmill.serve.start.server import Served
from tokenmill.weights.source import return_memory

log = logging.getLogger(__name__)


def served_of(hosted: Hosted, engine: Engine, on_failure: Callable[[], None]) -> Served:
    """Serve an engine that was just loaded, with the template and the adapters of before. Where that fails, the engine
    is closed.
    """
    with ExitStack() as failed:
        failed.callback(engine.close)
        if hosted.setup.template is not None and engine.tokenizer is not None:
            engine.tokenizer.use_template(hosted.setup.template)
        served = Served(engine, hosted.setup.options, on_failure)
        if hosted.adapters is not None:
            _restore_adapters(hosted, served)
        served.begin()
        failed.pop_all()
    return served


def _restore_adapters(hosted: Hosted, served: Served) -> None:
    """Have the adapters that the model had when it was unloaded: clients load, replace and unload them."""
    engine, wanted = served.engine, hosted.adapters or {}
    for name in set(served.service.model.adapters) - wanted.keys():
        engine.unload_adapter(name)
    hosted.lost.clear()
    for name, path in wanted.items():
        try:
            if name not in engine.adapters or Path(engine.adapters[name].path) != path:
                engine.load_adapter(name, path, replace=name in engine.adapters)
        except TokenmillError as error:
            hosted.lost[name] = path
            log.warning("the adapter %s of %s is not there any more: %s", name, hosted.name, error)


def give_memory_back() -> None:
    """Give the memory of an engine back that has ended, which nobody holds any more."""
    gc.collect()
    return_memory()
