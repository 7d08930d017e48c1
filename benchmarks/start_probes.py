"""The command line with probes, in a process that start_parts.py starts: what its time goes to until its first text.

Run: python benchmarks/start_probes.py STARTED REPORT ARGUMENTS, which are the monotonic clock when the process was
started, a file to write the seconds to, and what `tokenmill` is told. Little is imported here, because it is timed too.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

STEPS = {  # what is timed: "module:function" or "module:class.method", in the order of the table
    "tokenmill.hub.names:locate": "find the model's files",
    "tokenmill.loader.copies:copy_name": "name of the copy: digests of the model's files",
    "tokenmill.weights.packed.reader:PackedReader.__init__": "read the header, map the weights",
    "tokenmill.model.families:read_config": "read the model's config",
    "tokenmill.loader.resolve:resolve": "resolve settings, choose the program",
    "tokenmill.weights.packed.model:PackedCheckpoint.tokenizer": "tokenizer",
    "tokenmill.weights.names:match_tensors": "compare names and shapes of tensors",
    "tokenmill.cache.pool:Pool.__init__": "allocate the KV cache",
    "tokenmill.weights.packed.reader:PackedReader.wait": "wait until the weights are mapped",
    "tokenmill.model.rope:RotaryTable.__init__": "rotary tables",
    "tokenmill.program.native.program:Native.__init__": "place weights, start threads",
    "tokenmill.engine.core:Core.__init__": "the loop",
    "tokenmill.engine.inputs:InputProcessor.encode": "encode the prompt",
    "tokenmill.engine.core:Core.step": "first step: plan, commit",
    "tokenmill.program.native.program:Native.run": "first step: forward",
    "tokenmill.engine.inflight:InFlight.__init__": "first step: sample",
    "tokenmill.engine.inflight:InFlight.read": "first step: read the token",
    "tokenmill.text.detokenize:Detokenizer.push": "detokenize",
}
START, IMPORTS, REST = "interpreter, until its first line", "import ", "not attributed"


class Probes:
    """Divides the time since the process was started among rows; the innermost import or step has it."""

    def __init__(self, started_s: float) -> None:
        self._at_s, self._inside, self.seconds = started_s, [REST], defaultdict[str, float](float)
        self._charge(START)

    def _charge(self, row: str) -> None:
        now_s = time.monotonic()
        self.seconds[row] += now_s - self._at_s
        self._at_s = now_s

    def timed(self, row: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            self._charge(self._inside[-1])
            self._inside.append(row)
            try:
                return work(*args, **settings)
            finally:
                self._charge(self._inside.pop())

        return call

    def watch_imports(self) -> None:
        """Have each import timed. Python itself calls this function for every module that is not imported yet."""
        machinery: Any = sys.modules["_frozen_importlib"]
        find = machinery._find_and_load

        def find_and_load(name: str, import_: Any) -> Any:
            module = self.timed(IMPORTS + _group(name), find)(name, import_)
            for place, row in STEPS.items():
                if place.startswith(f"{name}:"):
                    self._watch(module, place.partition(":")[2], row)
            return module

        machinery._find_and_load = find_and_load

    def _watch(self, module: Any, place: str, row: str) -> None:
        holder, _, name = place.rpartition(".")
        owner = getattr(module, holder) if holder else module
        setattr(owner, name, self.timed(row, getattr(owner, name)))


def _group(name: str) -> str:
    """A third-party package by its name, Python's own modules together."""
    package = name.partition(".")[0]
    return "Python's own modules" if package in sys.stdlib_module_names else package


def run(started_s: float, report: str, arguments: list[str]) -> None:
    """The command line. What the probes found until its first text is written to `report` when that is printed."""
    probes = Probes(started_s)
    probes.watch_imports()
    from tokenmill.cli import main
    from tokenmill.cli.process.start import run as run_command

    prepare, has_printed = main.prepare_streams, list[bool]()

    def prepare_and_watch() -> None:
        prepare()
        write = sys.stdout.write

        def watched(text: str) -> int:
            if not has_printed:
                probes.timed(REST, lambda: None)()  # charges the time until now
                has_printed.append(True)
                with open(report, "w", encoding="utf-8") as out:  # noqa: PTH123  (pathlib may not be imported yet)
                    json.dump(probes.seconds, out)
            return write(text)

        sys.stdout.write = watched  # type: ignore[method-assign]

    main.prepare_streams = prepare_and_watch
    sys.argv[1:] = arguments
    run_command()


if __name__ == "__main__":
    run(float(sys.argv[1]), sys.argv[2], sys.argv[3:])
