"""The files of a directory or repository that hold its weights, by their names alone.

The order is as in transformers (`_get_resolved_checkpoint_files`): one safetensors file, an index of several, one
`.bin` file, an index of several. What is beside the chosen files is another copy of the model, or something else.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

_SINGLES = ("model.safetensors", "pytorch_model.bin")
FOREIGN = r"adapter_|consolidated"
"""The first letters of files that hold an adapter, or a model in Meta's or Mistral's own layout."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The files of a directory of PEFT: of the weights the first that is there."""
# Other names, for what other programs write, such as exports of GPTQ.
_OTHERS = (r"model[\w.-]*\.safetensors", rf"(?!{FOREIGN})[\w.-]+\.safetensors", r"pytorch_model[\w.-]*\.bin")
_SHARD = re.compile(r"(?P<before>.*-)(?P<number>\d+)(?P<of>-of-)(?P<count>\d+)(?P<after>\.\w+)", re.ASCII)


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold the weights, or may: an index, where there is one, says which of them do."""

    files: tuple[str, ...]
    index: str | None = None


def find_weights(names: Collection[str]) -> WeightFiles:
    """Find the files with the weights among the names of a directory; none where it holds no weights."""
    for single in _SINGLES:
        if single in names:
            return WeightFiles((single,))
        if (index := f"{single}.index.json") in names:
            stem, suffix = single.rsplit(".", 1)
            return WeightFiles(_matching(rf"{stem}[\w.-]+\.{suffix}", names), index)
    return WeightFiles(next((found for pattern in _OTHERS if (found := _matching(pattern, names))), ()))


def holds_adapter(names: Collection[str]) -> bool:
    """Tell whether a directory with these names holds an adapter of PEFT, and no model that it would be beside."""
    return ADAPTER_CONFIG in names and not ("config.json" in names and find_weights(names).files)


def missing_of_adapter(names: Collection[str]) -> list[str]:
    """Return the name of the weights that a directory of PEFT lacks, if it has none."""
    return [] if any(name in names for name in ADAPTER_WEIGHTS) else [ADAPTER_WEIGHTS[0]]


def missing_shards(files: Collection[str]) -> list[str]:
    """Return the names that shards such as x-00001-of-00003.safetensors lack among them."""
    return sorted({shard for file in files for shard in shards_of(file)} - set(files))


def shards_of(name: str) -> list[str]:
    """Return the names of all shards of a file such as x-00001-of-00003.gguf, in order; else its own name alone."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    before, number, of, count, after = match.groups()
    last = min(int(count), 10_000)  # a name may claim any number
    return [f"{before}{i:0{len(number)}}{of}{count}{after}" for i in range(1, last + 1)]


def _matching(pattern: str, names: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if re.fullmatch(pattern, name, re.ASCII)))
