"""Ranks as threads of one process, which start in milliseconds: each maps the shared memory for itself."""

import os
import threading
from concurrent.futures import Future

from tokenmill.loader.rank import adapters_of, load_rank, load_rank_beside
from tokenmill.memory.arena import SharedMemory
from tokenmill.parallel.division import Rank
from tokenmill.parallel.ranks import Ranks


class RanksInThreads(Ranks):
    """In the place of OtherRanks. errors: what the other ranks raised."""

    def __init__(self, count):
        super().__init__(Rank(0, count), SharedMemory(), SharedMemory())
        self.errors, self._threads, self._calls = [], [], []
        self.taken = [Future() for _ in range(1, count)]  # the adapters of each other rank
        self.loaded, self.beside = ([Future() for _ in range(1, count)] for _ in range(2))

    def start(self, told):
        self._begin(self._run, told, (self.steps.descriptor, self.cache.descriptor))

    def load_beside(self, told, shared):
        self._begin(self._run_beside, told, shared)

    def _begin(self, run, told, descriptors):
        for number in range(1, self.rank.count):
            mine = {**told, "rank": [number, self.rank.count]}
            shared = [os.dup(descriptor) for descriptor in descriptors]
            self._threads.append(threading.Thread(target=self._noted, args=(run, mine, shared)))
            self._threads[-1].start()

    def _run(self, told, shared):
        loaded, number = load_rank(told, shared), told["rank"][0] - 1
        self.taken[number].set_result(adapters_of(loaded))
        self.loaded[number].set_result(loaded)
        loaded.program.follow()

    def _run_beside(self, told, shared):
        number = told["rank"][0] - 1
        loaded = load_rank_beside(self.loaded[number].result(60), told, shared)
        self.beside[number].set_result(loaded)
        loaded.program.follow()

    def _noted(self, run, told, shared):
        try:
            run(told, shared)
        except Exception as error:  # noqa: BLE001  (tests look at it)
            self.errors.append(error)

    def ask(self, name, facts, tensors):
        found = [taken.result(60) for taken in self.taken]
        for each in found:
            each.forget(facts)
        return [each.take(facts, tensors) for each in found]

    def on_end(self, call):
        self._calls.append(call)

    def end(self):
        for call in self._calls:
            call()
        for thread in self._threads:
            thread.join()
        self.steps.close()
        self.cache.close()
