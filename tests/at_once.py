"""Workers that do random things side by side, each in a thread of its own, until the time is over or one has failed."""

import faulthandler
import sys
import threading
import time

SPARE_S = 120  # after which a thread counts as one that waits for ever


def run_at_once(workers, seconds):
    """Call `work(stop)` of each worker. What the first one has raised is raised here."""
    ends, failures = time.monotonic() + seconds, []

    def run(worker):
        try:
            # However late its thread begins, each does something.
            worker.work(lambda: failures or (worker.counts and time.monotonic() > ends))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(ends + SPARE_S - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(sys.__stderr__)
        raise AssertionError("a thread waits for ever; stderr shows where")
    if failures:
        raise failures[0]
    assert all(worker.counts for worker in workers)
