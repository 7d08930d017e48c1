"""The pooling that a GGUF file names in its header, by llama.cpp's number."""

from pathlib import Path

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import brief
from tokenmill.weights.gguf.header import read_header

POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # llama.cpp's enum llama_pooling_type


def pooling_of_file(path: Path) -> str | None:
    """Read the pooling; None where the header has none. CheckpointError for a number that is not known."""
    metadata = read_header(path).metadata
    number = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if number in (None, 0):
        return None
    if type(number) is not int or number not in POOLINGS:
        raise CheckpointError(f"{path} has pooling_type {brief(number)}; known are {', '.join(map(str, POOLINGS))}")
    return POOLINGS[number]
