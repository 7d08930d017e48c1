"""Ranks as threads of one process, which start in milliseconds: each maps the shared memory for itself."""

import os
import threading
from concurrent.futures import Future

from tokenmill.loader.rank import adapters_of, load_rank
from tokenmill.memory.arena import SharedMemory
from tokenmill.parallel.division import Rank
from tokenmill.parallel.ranks import Ranks


class RanksInThreads(Ranks):
    """In the place of OtherRanks. errors: what the other ranks raised."""

    def __init__(self, count):
        super().__init__(Rank(0, count), SharedMemory(), SharedMemory())
        self.errors, self._threads, self._calls = [], [], []
        self.taken = [Future() for _ in range(1, count)]  # the adapters of each other rank

    def start(self, told):
        for number in range(1, self.rank.count):
            shared = [os.dup(memory.descriptor) for memory in (self.steps, self.cache)]
            mine = {**told, "rank": [number, self.rank.count], "shared": shared}
            self._threads.append(threading.Thread(target=self._run, args=(mine,)))
            self._threads[-1].start()

    def _run(self, told):
        try:
            loaded = load_rank(told)
            self.taken[told["rank"][0] - 1].set_result(adapters_of(loaded))
            loaded.program.follow()
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
