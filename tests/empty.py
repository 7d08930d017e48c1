"""Whether an engine is as empty as before its first request, except for rows that can be found again."""

import gc

from tests.integrity import check_scheduler


def check_empty(core):
    """Assert that no sequence, tracker or block in use is left."""
    gc.collect()

    def check():
        scheduler = core.scheduler
        check_scheduler(scheduler)
        left = (scheduler.running, list(scheduler.waiting), scheduler.parked, core.trackers)
        assert left == ([], [], [], {}), left
        assert scheduler.allocator.num_free == scheduler.allocator.num_blocks

    core.call(lambda: None)  # what was handed in before may have handed in more, which is done next
    core.call(check)
