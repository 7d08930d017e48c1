"""A rank that is not like the others, run in the place of tokenmill.loader.eager_rank. TOKENMILL_TEST_RANK says how."""

import os
import sys
import time

from tests.parallel.adapters_refused import refuse_adapters
from tokenmill.loader import eager_rank, ranks
from tokenmill.parallel.rendezvous import meet_starter

how = os.environ["TOKENMILL_TEST_RANK"]
if how == "ends":
    sys.exit(3)
if how == "waits":
    meet_starter(int(sys.argv[1]))
    time.sleep(600)
if how == "has no weights":
    from tokenmill.errors import CheckpointError
    from tokenmill.weights.source import WeightSource

    def refuse(*_):
        raise CheckpointError("the disk of this rank is gone")

    WeightSource.matrix = refuse
refuse_adapters(how)
facts_of = ranks.facts_of
ranks.facts_of = lambda *given: {**facts_of(*given), **({how: "another"} if "'s " in how else {})}
eager_rank.main(int(sys.argv[1]))
