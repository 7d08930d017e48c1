"""A rank that refuses adapters, run in the place of tokenmill.loader.rank; see other_rank.py."""

import os
import sys

from tests.parallel.adapters_refused import refuse_adapters
from tokenmill.loader import rank

refuse_adapters(os.environ["TOKENMILL_TEST_RANK"])
sys.exit(rank.main(int(sys.argv[1])))
