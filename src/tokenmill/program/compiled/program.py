"""Program compiled: the PyTorch modules through torch.compile, for a few shapes; on CUDA recorded in graphs.

A shape is compiled when a step first needs it; with `compile_in_background` the plain modules serve until it is ready.
Each shape has a code object of its own, so none can push another out of torch's cache, and no guards: which compiled
function is called is chosen by shape, and nothing else of it changes.
"""

import logging
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import cpp_builder

from tokenmill.cache.padded_step import kept_over
from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.errors import ConfigError
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.decoder import Decoder, run_layer
from tokenmill.program.compiled.micro_batches import (
    Cache,
    Call,
    Inputs,
    MicroBatch,
    MicroBatched,
    StaticShapes,
    StepShape,
)
from tokenmill.program.forward import ModelParts

log = logging.getLogger(__name__)

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes a function; returns a function that repeats it, and the tensor that holds its result after each repetition."""


class Compiled(MicroBatched):
    """The program that compiles. calls: the compiled functions so far, None for one that a thread is compiling."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        decoder, pool, config = self.decoder, parts.pool, parts.config
        self._config, self._mode, on_gpu = config, config.compile, self.device.type == "cuda"
        if self._mode == "auto":
            self._mode = "static" if on_gpu else "dynamic"
        if self._mode != "dynamic":
            self.shapes = StaticShapes(config.max_sequences, config.max_step_tokens, decoder.num_positions)
        if self._mode != "no":
            check_backend(config.compile_backend)
        self.capture: Capture | None = CudaGraphs() if on_gpu and self._mode != "dynamic" else None
        self.calls: dict[StepShape, Call | None] = {}
        self._forward = Forward(decoder, pool, self.padded)

    def find(self, batch: MicroBatch, step: Step) -> Call | None:
        """Find the compiled function, compiled now if need be; None while a thread compiles it, or for other phases."""
        if self._config.compile_phases not in ("both", "decode" if batch[0].count == 1 else "prefill"):
            return None
        key, example = self.shapes.compilation(self.shapes.of(batch))
        if key not in self.calls:
            inputs = self.stage(batch, example, step).without_states()
            if self._config.compile_in_background:
                self.calls[key] = None
                has_begun = threading.Event()
                # No daemon: a process that ends in the midst of compiling crashes. It waits; the command line does not.
                given = key, inputs, has_begun
                threading.Thread(target=self._compile_aside, args=given, name="compile", daemon=False).start()
                has_begun.wait()
            else:
                self.calls[key] = self._compile(inputs, self.cache)
        return self.calls[key]

    def _compile(self, inputs: Inputs, cache: Cache) -> Call:
        """Compile a function. It is run once with these inputs, and writes rows that their step will write again."""
        if self._mode == "no":
            return self._forward
        log.info("compiling %s", inputs)
        began_s = time.perf_counter()
        call = compile_forward(self._forward, inputs, cache, self._config.compile_backend, self._mode == "dynamic")
        seconds = time.perf_counter() - began_s
        self.compile_s += seconds
        log.info("compiled in %.1f s", seconds)
        varies = self.keeps_states and inputs.token_ids_BC.shape[1] > 1  # in its number of saves
        return call if self.capture is None or varies else Captured(call, self.capture)

    def _compile_aside(self, key: StepShape, inputs: Inputs, has_begun: threading.Event) -> None:
        torch.get_num_threads()  # during the step: a new thread keeps the number of its first call
        has_begun.set()
        try:
            with torch.inference_mode(False):  # a cache of its own, like the real one
                cache = [tuple(torch.zeros_like(tensor) for tensor in layer) for layer in self.cache]
            self.calls[key] = self._compile(inputs, cache)
        except Exception as error:  # noqa: BLE001  (nobody waits for this thread: whatever it is, it is said)
            log.warning("%s; the plain modules go on serving", error)


class Forward(nn.Module):
    """A decoder over padded steps."""

    def __init__(self, decoder: Decoder, pool: Pool, attend: Attend) -> None:
        super().__init__()
        self.decoder = decoder
        self._layers, self._block_size, self._attend = pool.layers, pool.spec.block_size, attend
        self._run_layer = torch.compiler.nested_compile_region(run_layer)  # equal layers are compiled once

    def forward(self, inputs: Inputs, cache: Cache) -> Tensor:
        layers = [kept_over(layer, *tensors) for layer, tensors in zip(self._layers, cache, strict=True)]
        return self.decoder(inputs.padded(self._block_size), layers, self._attend, self._run_layer)  # type: ignore[no-any-return]


@torch.inference_mode()
def compile_forward(forward: Forward, inputs: Inputs, cache: Cache, backend: str, dynamic: bool) -> Call:
    """Compile a function for inputs of this shape, and run it once with these. ConfigError where the backend fails."""
    # The same function with a code object of its own: torch.compile keeps what it compiled by code object.
    run = FunctionType(_run.__code__.replace(), globals())
    compiled = torch.compile(
        run,
        backend=backend,
        fullgraph=True,  # after a graph break comes a code object that all shapes would share, without guards
        dynamic=False,  # sizes that may differ are marked
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )
    _mark_dynamic(inputs, dynamic)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32")  # inductor's advice, which would round float32
            compiled(forward, inputs, cache)
    except Exception as error:  # backends raise what they like
        reason = str(getattr(error, "inner_exception", error)).strip() or type(error).__name__
        allowed = f"it failed for {inputs}: {reason.splitlines()[0]}; use another, or compile='no'"
        raise ConfigError("compile_backend", backend, allowed) from error
    return partial(compiled, forward)


def _run(forward: Forward, inputs: Inputs, cache: Cache) -> Tensor:
    logits_RV: Tensor = forward(inputs, cache)
    return logits_RV


def _mark_dynamic(inputs: Inputs, all_sizes: bool) -> None:
    """Mark the sizes that may differ: sequences, tokens and positions, except 1, which is a case of its own; if not
    all_sizes, only how many states a span leaves, which no shape declares.
    """
    span = int(inputs.token_ids_BC.shape[1] > 1)
    marked = (2, 2, 1, 1, 1, 1, 1) if all_sizes else (0, 0, 0, 0, 0, 0, span)
    for tensor, num_dynamic in zip(inputs, marked, strict=True):
        for dimension in range(num_dynamic):
            if tensor is not None and tensor.shape[dimension] > 1:
                torch._dynamo.mark_dynamic(tensor, dimension)


def check_backend(name: str) -> None:
    """Raise ConfigError for a name that torch.compile does not know, or for inductor without a C++ compiler."""
    names = torch._dynamo.list_backends(())
    if name not in names:
        raise ConfigError("compile_backend", name, f"torch.compile knows {', '.join(sorted(names))}")
    if name != "inductor":
        return
    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError as error:
        raise ConfigError("compile_backend", name, "it needs a C++ compiler: install g++, or set CXX") from error


class Captured:
    """A Call that is recorded when it is first called; where the GPU has no memory to record it, it is called as it
    is. The tensors of the KV cache must be the same in every call.
    """

    def __init__(self, call: Call, capture: Capture) -> None:
        self._call = call
        self._capture: Capture | None = capture
        self._inputs: Inputs | None = None

    def __call__(self, inputs: Inputs, cache: Cache) -> Tensor:
        device = inputs.token_ids_BC.device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            if self._inputs is None and self._capture is not None:
                self._record(inputs, cache, self._capture)
            if self._inputs is None:
                return self._call(inputs, cache)
            for target, tensor in zip(self._inputs, inputs, strict=True):
                if target is not None and tensor is not None:
                    target.copy_(tensor, non_blocking=True)
            self._again()
            return self._logits.clone()  # the next call, perhaps of the same step, writes to the same place

    def _record(self, inputs: Inputs, cache: Cache, capture: Capture) -> None:
        held = Inputs._make(None if tensor is None else tensor.clone() for tensor in inputs.without_states())
        try:
            self._again, self._logits = capture(lambda: self._call(held, cache))
        except Exception as error:
            if not _lacks_memory(error):
                raise
            log.warning("the GPU has no memory to record %s, which is launched kernel by kernel: %s", inputs, error)
            self._capture = None
        else:
            self._inputs = held


def _lacks_memory(error: BaseException | None) -> bool:
    """Tell whether memory was lacking: where a recording was broken off by that, torch raises another error at once."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__context__
    return error is not None


class CudaGraphs:
    """Records functions in graphs that share one pool of memory: no two run at once, and what one has computed is
    copied before the next runs.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record a function, after some runs on another stream, as torch asks. Each run writes the same rows."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):
                for _ in range(3):
                    run()
        finally:  # what has begun there may still write rows
            torch.cuda.current_stream().wait_stream(aside)
        graph, pool, self._pool = torch.cuda.CUDAGraph(), self._pool or torch.cuda.graph_pool_handle(), None
        with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):  # another thread may be compiling
            logits = run()
        self._pool = pool  # a pool of which no graph came is of no use to others
        return graph.replay, logits
