"""Threads of torch: set inside of a context alone, and one in the thread that was forked."""

import threading

import pytest
import torch

from tests.forked import in_fork
from tokenmill.kernels import threads
from tokenmill.kernels.threads import default_threads, over_rows, torch_threads
from tokenmill.process import is_forked_thread


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_the_number_is_given_back(error):
    before = torch.get_num_threads()
    try:
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            if error is not None:
                raise error
    except (KeyboardInterrupt, ValueError):
        pass
    assert torch.get_num_threads() == before


def test_a_forked_thread_computes_alone_and_its_own_threads_do_not():
    def child():
        found = []

        def compute():
            with torch_threads(2):
                table = torch.ones(512, 512)
                found.append((is_forked_thread(), torch.get_num_threads(), float((table @ table).sum())))

        compute()
        aside = threading.Thread(target=compute)
        aside.start()
        aside.join()
        return found

    assert in_fork(child) == repr([(True, 1, 512.0**3), (False, 2, 512.0**3)])
    assert not is_forked_thread()


@pytest.mark.parametrize(("processors", "expected"), [(1, 1), (3, 3), (9, 4)])
def test_no_more_threads_than_there_are_processors(monkeypatch, processors, expected):
    monkeypatch.setattr(threads, "available_processors", lambda: processors)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert default_threads() == expected


@pytest.mark.parametrize(("num_rows", "shares"), [(5, [3, 2]), (2, [1, 1]), (1, [1]), (0, [0])])
def test_each_thread_has_a_share_of_the_rows(num_rows, shares):
    with torch_threads(2):
        found = over_rows(lambda rows: (rows.tolist(), torch.get_num_threads()), torch.arange(num_rows))
    assert [len(rows) for rows, _ in found] == shares
    assert [row for rows, _ in found for row in rows] == list(range(num_rows))
    assert {inside for _, inside in found} == {1}
