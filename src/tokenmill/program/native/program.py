"""Program native, for CPUs: the whole step in one call of a C++ library (`native/`) with its own threads and weights.

The logits of a row are the same bits for any batch, chunk, block size and number of threads: rows are divided among
threads, sums never are.
"""

import ctypes
import weakref
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from tokenmill.cache.step import Step
from tokenmill.errors import CapacityError, ConfigError, RankLost
from tokenmill.kernels import native_library, native_structs
from tokenmill.memory.nodes import memory_nodes
from tokenmill.model.description import describe
from tokenmill.parallel.division import Rank
from tokenmill.parallel.ranks import Ranks
from tokenmill.process import forget_in_child
from tokenmill.program.forward import ModelParts, Output, Program
from tokenmill.program.handed import COMMAND, HandedAdapters, HandsOn
from tokenmill.program.native.layouts import LAYOUTS, kv_number
from tokenmill.program.native.lent import LentOps
from tokenmill.program.native.ops import Ops
from tokenmill.program.native.weights import Packed, Packing
from tokenmill.program.parts import Opened
from tokenmill.weights.adapters.adapter import Adapter
from tokenmill.weights.source import WeightSource

WHY_BYTES = 500


def _free(model: int, ranks: Ranks) -> None:
    ranks.end()  # before the model: a step that waits for them fails
    native_library.library().tm_free(model)


class Native(Program, HandsOn):
    """ops: the operations of the model, whose array the library reads. rank: the process, one of several that share the
    memory of steps. ranks: its side of the others.
    """

    build = ""
    """A build of the library in kernels.native_library.BUILDS; "" stands for the best build of this processor."""

    def __init__(self, parts: ModelParts) -> None:
        source, pool, opened, config = parts.weights, parts.pool, parts.own, parts.config
        assert isinstance(opened, Opened), "every load opens them"
        packed, self.ranks, rank = opened.packed, opened.ranks, opened.ranks.rank
        self.rank, self._handed = rank, HandedAdapters(partial(self.ranks.ask, COMMAND))
        shape, description = source.model, describe(source.model)
        self._pool, self._vocab_size = pool, shape.vocab_size
        if packed is None:
            self._weights: Packing | Packed = Packing(source, opened.allocate, LAYOUTS[config.dtype], rank)
        else:
            self._weights = Packed(
                torch.frombuffer(packed.payload(), dtype=torch.uint8), packed.facts["weights"], config.dtype, rank
            )
        # Where there are several memory nodes, units were copied to the nodes of threads, and their memory given up.
        lent = None
        if opened.lent is not None and isinstance(opened.lent.program, Native) and len(memory_nodes()) < 2:
            self._lender = opened.lent.program  # keeps alive what the operations point to
            lent = LentOps(self._lender.ops.array[0], self._lender.ops.array[-1], opened.lent.num_logits)
        self._num_logits = lent.num_logits if lent and lent.num_logits else self._vocab_size
        self.ops: Ops = Ops(
            description, source.scheme, config.dtype, pool.layers, self._weights, config.max_length, lent
        )
        self.num_weight_bytes, self.num_matrix_bytes = self._weights.num_bytes, self._weights.num_matrix_bytes
        self._spec = native_structs.TmModel(
            hidden=shape.hidden_size,
            intermediate=max((mlp.down.inputs for layer in description.layers for mlp in layer.mlps), default=1),
            vocab=shape.vocab_size * max(shape.num_types, 1),
            cache_format=kv_number(pool.spec.format, pool.spec.dtype),
            ops=self.ops.array,
            num_ops=len(self.ops.array),
            num_threads=config.threads,
            build=self.build.encode(),
            num_positions=config.max_length,
            num_slots=pool.spec.num_slots,
            num_states=pool.spec.num_states,
            rank=rank.number,
            num_ranks=rank.count,
            max_tokens=config.max_step_tokens,
        )
        self._share_memory()
        self._place_threads(memory_nodes(), rank)
        self.ranks.meet()
        self._start()

    def _share_memory(self) -> None:
        """Map the memory of steps that the ranks share, and have every step fail once one of the ranks has ended."""
        if self.ranks.steps is None:
            return
        lib = native_library.library()
        self._shared = self.ranks.steps.map(lib.tm_shared_bytes(ctypes.byref(self._spec)))
        self._spec.shared = address = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        shared = self._shared  # held for as long as the function may be called
        self.ranks.on_end(lambda: lib.tm_lose(address) if len(shared) else None)

    def _place_threads(self, nodes: list[list[int]], rank: Rank) -> None:
        """Divide the threads of all ranks among the memory nodes, where there are several."""
        if len(nodes) < 2:
            return
        threads, count = self._spec.num_threads, rank.count * self._spec.num_threads
        own = range(rank.number * threads, (rank.number + 1) * threads)
        node_of = {processor: node for node, processors in enumerate(nodes) for processor in processors}
        of_processors = [node_of.get(processor, -1) for processor in range(max(node_of) + 1)]
        self._spec.num_processors = len(of_processors)
        self._spec.processor_nodes = (ctypes.c_int32 * len(of_processors))(*of_processors)
        self._spec.thread_nodes = (ctypes.c_int32 * threads)(*(thread * len(nodes) // count for thread in own))

    def _start(self) -> None:
        self._call, self._why = native_structs.TmStep(), ctypes.create_string_buffer(WHY_BYTES)
        self._model = self._made()
        if not self._model:
            self.ranks.check()
            raise CapacityError("threads", self._spec.num_threads, 0, f"threads ({self._why.value.decode()})")
        self._finalizer = weakref.finalize(self, _free, self._model, self.ranks)
        forget_in_child(self)

    def _made(self) -> Any:
        """Make the model. A thread waits for the other ranks, so that the caller can be interrupted meanwhile."""

        def make() -> Any:
            return native_library.library().tm_make(ctypes.byref(self._spec), self._why, WHY_BYTES)

        if self._spec.num_ranks == 1:
            return make()
        thread = ThreadPoolExecutor(1)
        try:
            return thread.submit(make).result()
        finally:
            thread.shutdown(wait=False)

    @property
    def build_id(self) -> str:
        return f"{self.build or native_library.best_build()} {native_library.library_digest()}"

    def packed_weights(self, others: Iterable[WeightSource] = ()) -> dict[str, Any]:
        if not isinstance(self._weights, Packing):
            raise ConfigError("model", "a packed model", "the model itself: it is packed already")
        return self._weights.describe(others)

    def run(self, step: Step) -> Output:
        """Compute the step; the logits are float32."""
        logits_RV = torch.empty(step.num_rows, self._vocab_size)
        if self._num_logits < self._vocab_size:
            logits_RV[:, self._num_logits :] = -torch.inf
        # One array, one struct for every step, no tensors: since the last step all of Python is out of the caches.
        numbers = array("q", step.token_ids if step.fed_R is None else step.token_ids_T.tolist())
        count = len(numbers)
        numbers.extend(step.positions)
        numbers.extend(step.slots)
        numbers.extend(step.rows or ())
        first_span = len(numbers)
        num_saves = 0
        for span in step.spans:  # TmSpan
            slots = 0 if span.slots_L is None else span.slots_L.data_ptr()
            numbers.extend((span.first, span.count, span.start, -1 if span.base is None else span.base, slots))
            adapter = 0 if span.adapter is None else span.adapter.prepared["native"].address
            numbers.extend((-1 if span.state is None else span.state, num_saves, len(span.saves), adapter))
            num_saves += len(span.saves)
        first_save = len(numbers)
        for span in step.spans:
            for save in span.saves:
                numbers.extend(save)
        first_stop = len(numbers)
        numbers.extend(step.stop_ids)
        call, at, size = self._call, numbers.buffer_info()[0], numbers.itemsize
        call.num_tokens, call.num_spans, call.num_rows = count, len(step.spans), step.num_rows
        call.tokens, call.positions, call.slots = at, at + size * count, at + 2 * size * count
        call.rows = None if step.rows is None else at + 3 * size * count
        call.spans, call.logits = at + size * first_span, logits_RV.data_ptr()
        call.saves = at + size * first_save
        call.stops, call.num_stops = at + size * first_stop, len(step.stop_ids)
        step.hidden_TD = torch.empty(count, self._spec.hidden) if step.keeps_hidden else None
        given_TD = None if step.given_TD is None else step.given_TD.float().contiguous()
        call.hidden, call.given = (None if each is None else each.data_ptr() for each in (step.hidden_TD, given_TD))
        if native_library.library().tm_run(self._model, ctypes.byref(call), self._why, WHY_BYTES):
            self.ranks.check()
            raise RuntimeError(f"the native program failed: {self._why.value.decode()}")
        return Output(logits_RV, numbers[:count] if step.has_unknown else ())

    def hand_on(self, adapter: Adapter | None) -> None:
        addresses = self._handed.hand_on(adapter) if self.rank.count > 1 else []
        if adapter is not None and addresses:
            adapter.prepared["native"].note_ranks(addresses)

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        self.ranks.on_loss(call)

    def close(self) -> None:
        self.ranks.end()

    def forget(self) -> None:
        """Free nothing in a forked process, which has the memory without the threads: none can be joined there."""
        self._finalizer.detach()

    def follow(self) -> None:
        if native_library.library().tm_follow(self._model, self._why, WHY_BYTES):
            raise RuntimeError(f"the native program failed: {self._why.value.decode()}")
