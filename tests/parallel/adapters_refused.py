"""Has a rank refuse an adapter, or die of it."""

import os

from tokenmill.program import handed


def refuse_adapters(how):
    """For what TOKENMILL_TEST_RANK says of adapters."""
    read = handed.read_written

    def read_unless_refused(facts, tensors):
        if how == "dies of an adapter":
            os._exit(3)
        if how == f"has no memory for {facts['name']}":
            raise MemoryError("no memory is left")
        return read(facts, tensors)

    handed.read_written = read_unless_refused
