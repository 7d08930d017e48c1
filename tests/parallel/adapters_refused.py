"""Has a rank refuse an adapter, die of it, or take it when a test says so."""

import os
from pathlib import Path

from tokenmill.program import handed


def refuse_adapters(how):
    """For what TOKENMILL_TEST_RANK says of adapters. b waits between a byte to the pipe `begun` and one of `goes on`,
    in the folder that follows `waits in`.
    """
    read = handed.read_written

    def read_unless_refused(facts, tensors):
        if how == "dies of an adapter":
            os._exit(3)
        if how == f"has no memory for {facts['name']}":
            raise MemoryError("no memory is left")
        if how.startswith("waits in ") and facts["name"] == "b":
            folder = Path(how.removeprefix("waits in "))
            (folder / "begun").write_bytes(b".")
            with (folder / "goes on").open("rb") as goes_on:
                goes_on.read(1)
        return read(facts, tensors)

    handed.read_written = read_unless_refused
