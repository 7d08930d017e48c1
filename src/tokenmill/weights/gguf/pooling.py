"""The parts of a GGUF file that make vectors and scores: pooling, the matrices behind it, a reranker's head."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tokenmill.errors import CheckpointError
from tokenmill.model.families.in_gguf import CLASSIFIER, DENSE
from tokenmill.value_reader import brief
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.gguf.header import Header, TensorInfo, read_header
from tokenmill.weights.gguf.tensors import load

POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # llama.cpp's enum llama_pooling_type
RANK = 4  # of the same: the file scores texts
TANH, GELU, NORM, NONE = "Tanh", "GELU", "", "Identity"
Tensors = dict[str, NDArray[np.float32]]


def pooling_of_file(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """Read the pooling, None where the header has none, and the names of matrices by which a pooled vector is
    multiplied. CheckpointError for a number that is not known, and for a reranker without its head.
    """
    header = read_header(path)
    _head(path, header)
    number = header.metadata.get(f"{_architecture(header)}.pooling_type")
    dense = tuple(name for name in DENSE if f"{name}.weight" in header.tensors)
    if number is None or (type(number) is int and number in (0, RANK)):
        return None, dense
    return _pooling(path, "pooling_type", number), dense


def _architecture(header: Header) -> str:
    return str(header.metadata.get("general.architecture"))


def _encodes(header: Header) -> bool:
    return not header.metadata.get(f"{_architecture(header)}.attention.causal", True)


def _head(path: Path, header: Header) -> tuple[TensorInfo | None, TensorInfo | None]:
    """Find the matrix before the labels, and the one of the labels. CheckpointError where a reranker lacks it:
    llama.cpp takes the first number of a row for its score.
    """
    inner, last = (header.tensors.get(f"{name}.weight") for name in ("cls", "cls.output"))
    if _encodes(header) and last is None:
        inner, last = None, inner  # jina's rerankers have the last matrix under the first's name
    if last is None and header.metadata.get(f"{_architecture(header)}.pooling_type") == RANK:
        lost = "cls.weight and cls.output.weight" if _encodes(header) else "cls.output.weight"
        told = f"has pooling_type {RANK}, which is a reranker's, and lacks its head, {lost}"
        raise CheckpointError(f"{path} {told}; give the directory that it was made of")
    return inner, last


def _pooling(path: Path, key: str, number: object) -> str:
    if type(number) is not int or number not in POOLINGS:
        raise CheckpointError(f"{path} has {key} {brief(number)}; known are {', '.join(map(str, POOLINGS))}")
    return POOLINGS[number]


def matrices_of_file(path: Path, names: tuple[str, ...]) -> Tensors:
    """Read the tensors of these names that a file has, dequantised, by name."""
    checkpoint, found = GGUFCheckpoint(path), read_header(path).tensors
    return {name: load(checkpoint, found[name], torch.float32).numpy() for name in names if name in found}


def classifier_of_file(path: Path) -> tuple[str, list[tuple[str, str]], Tensors] | None:
    """Read a reranker's head: the pooling before it, its parts in order with what follows each, and its tensors; None
    for a model without one. CheckpointError for a reranker that lacks it, or a part of it.

    A decoder with two labels, "yes" and "no" of Qwen3-Reranker, has none of its own: they are rows of its head.
    """
    header = read_header(path)
    arch, encodes = _architecture(header), _encodes(header)
    first, labels = _head(path, header)
    if labels is None or (not encodes and labels.shape[0] == 2):
        return None
    if encodes and first is None:
        lost = "the matrix before its last one: llama.cpp's converter leaves out the pooler of BERT"
        raise CheckpointError(f"{path} scores texts and lacks {lost}; give the directory that it was made of")
    width = header.metadata.get(f"{arch}.embedding_length")
    wanted = {"cls.weight": (width, width), "cls.bias": (width,), "cls.norm.weight": (width,)}
    outputs = labels.shape[0] if labels.shape else 0
    wanted |= {"cls.output.weight": (outputs, width), "cls.output.bias": (outputs,)}
    found = {name: tuple(header.tensors[name].shape) for name in wanted if name in header.tensors}
    if wrong := [
        f"{name} {list(shape)}, needs {list(wanted[name])}" for name, shape in found.items() if shape != wanted[name]
    ]:
        raise CheckpointError(f"{path} does not fit its metadata", misshapen=wrong)
    before = [("cls", GELU if arch == "modern-bert" else TANH)] if first is not None else []
    norm = [("cls.norm", NORM)] if "cls.norm.weight" in header.tensors else []
    pooling = "cls" if encodes else "last"
    if arch == "modern-bert":  # llama.cpp takes the mean where the header says nothing
        pooling = _pooling(path, key := "classifier.pooling_type", header.metadata.get(f"{arch}.{key}", 1))
    return pooling, [*before, *norm, ("cls.output", NONE)], matrices_of_file(path, CLASSIFIER)
