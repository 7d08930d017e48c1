"""`python -m tokenmill.loader.eager_rank`: another rank of an engine, which rank 0 starts and which ends with it."""

import logging
import sys

import torch

from tokenmill.loader.load_model import load_model
from tokenmill.loader.packed_copy import open_model
from tokenmill.loader.ranks import Following
from tokenmill.parallel.rendezvous import meet_starter
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.value_reader import path_of


def main(descriptor: int) -> None:
    """Load this rank's share of the model, and follow rank 0. descriptor: the socket to rank 0."""
    logging.disable(logging.ERROR)  # rank 0 logs the same
    meeting, task = meet_starter(descriptor)
    with Following(meeting) as ranks:
        config = EngineConfig(**task)
        torch.set_num_threads(task["threads"])
        load_model(*open_model(path_of(config.model), config), ranks=ranks)


if __name__ == "__main__":
    main(int(sys.argv[1]))
