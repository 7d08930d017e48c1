"""The number of threads in which torch computes, set for a while and given back; torch in a forked process.

The process is not ours: a number that is set here holds inside of a context. In a forked process the thread that was
forked has none of the threads of torch's pool, and would wait for them for ever; so it computes alone.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor

from tokenmill.memory.available import available_processors
from tokenmill.process import is_forked_thread

Found = TypeVar("Found")


def default_threads() -> int:
    """Return the number of threads without a setting: torch's own, at most the processors of this process."""
    return min(torch.get_num_threads(), available_processors())


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Have torch compute in so many threads inside, in this thread of Python and in threads that begin inside."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if is_forked_thread() else count)
        yield
    finally:
        torch.set_num_threads(before)


def over_rows(function: Callable[[Tensor], Found], rows: Tensor) -> list[Found]:
    """Call the function for as many shares of the rows as torch has threads, side by side, each in one thread.

    For many small operations one after the other: torch's own threads would wait for each other after each of them.
    """
    count = torch.get_num_threads()
    shares = torch.tensor_split(rows, min(count, max(len(rows), 1)))
    with torch_threads(1), ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, shares))


def ahead(items: Iterator[Found], num_threads: int) -> Generator[Found]:
    """Yield the same items, while a thread makes the next one; torch computes in so many threads there."""
    end = object()

    def make() -> Found | object:
        with torch_threads(num_threads):
            return next(items, end)

    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(make)
        while (item := following.result()) is not end:
            following = thread.submit(make)
            yield cast(Found, item)
