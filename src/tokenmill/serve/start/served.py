"""An engine that is served: all that stands between it and the sockets."""

from collections.abc import Callable

from tokenmill.engine.engine import Engine
from tokenmill.serve.loop.admission import Admission
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.loop.metrics import Metrics
from tokenmill.serve.loop.pace import Pace
from tokenmill.serve.loop.service import Service
from tokenmill.serve.request.calling import set_tools
from tokenmill.serve.sessions.batch_worker import BatchWorker
from tokenmill.serve.sessions.sessions import Sessions
from tokenmill.serve.start.app import make_app
from tokenmill.serve.start.options import Options


class Served:
    """The parts of a server for one engine, and its application. on_failure: see Driver. tools: how it calls functions,
    in words.
    """

    def __init__(self, engine: Engine, options: Options, on_failure: Callable[[], None] = lambda: None) -> None:
        self.engine = engine
        metrics = Metrics(engine.core, options.name, options.metrics_prefix)
        self.pace = Pace(engine.core.scheduler, options.stall_s)
        self.driver = Driver(engine.core, metrics, on_failure)
        self.admission = Admission(metrics, engine.config.max_sequences + options.max_queued, len(options.keys))
        kept = Sessions(engine, options.session_dir) if options.session_dir is not None else None
        self.batches = BatchWorker(engine, options, options.batch_dir) if options.batch_dir is not None else None
        self.service = Service(engine, self.driver, self.admission, options, kept, self.batches)
        self.app = make_app(self.service)
        self.tools = set_tools(engine.tokenizer, options.tool_format) if engine.tokenizer is not None else None
