"""The files of weights of a model directory in Hugging Face layout.

A directory that cannot be read as a model is refused here, in a sentence that says what kind of folder it is, or which
file it lacks.
"""

import re
from pathlib import Path

from tokenmill.errors import CheckpointError
from tokenmill.hub.weight_files import ADAPTER_CONFIG, FOREIGN, find_weights, missing_shards
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader, brief


def weight_files(path: Path) -> list[Path]:
    """Find the files that transformers would read, or files of other names where none has its names.

    CheckpointError where there are none, or where an index or the name of a shard says that one is missing.
    """
    names = {file.name for file in path.iterdir() if file.is_file()}
    found = find_weights(names)
    files = found.files if found.index is None else _files_of_index(path / found.index, names)
    if not files:
        raise CheckpointError(
            f"{path} holds no weights: neither *.safetensors nor pytorch_model*.bin{_foreign(names)}{_gguf_in(path)}"
        )
    if found.index is None and (missing := missing_shards(files)):
        verb = "is" if len(missing) == 1 else "are"
        raise CheckpointError(f"{path} is incomplete: {', '.join(missing)} {verb} missing")
    return [path / name for name in files]


def has_weights(path: Path) -> bool:
    """Tell whether a directory has files of weights, or an index of such files."""
    found = find_weights({file.name for file in path.iterdir() if file.is_file()})
    return bool(found.files or found.index)


def not_a_model(path: Path) -> str:
    """Say why a directory without a config.json is no model."""
    if (path / ADAPTER_CONFIG).is_file():
        base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
        of = f"of the model {brief(base)}, not a model" if isinstance(base, str) and base else "and no model"
        return (
            f"{path} is an adapter {of}: give the model, and this with --adapter; or tokenmill merge writes both as one"
        )
    if (path / "params.json").is_file():
        return f"{path} has a params.json, as models in Meta's or Mistral's own layout, but no consolidated.* beside it"
    if (path / "tekken.json").is_file():
        return f"{path} is no model directory: it has a tekken.json, which is Mistral's tokenizer, but no config.json"
    return f"{path} is no model directory: it has no config.json{_gguf_in(path)}"


def _files_of_index(index: Path, present: set[str]) -> list[str]:
    """List the files that an index names; every one of them must be there."""
    reader = ValueReader(read_json(index), str(index), CheckpointError)
    named = {
        name if isinstance(name, str) else brief(name) for name in reader.inside("weight_map", True).values.values()
    }
    if missing := sorted(named - present):
        others = find_weights(present - {index.name}).files
        beside = f"; if {', '.join(others[:3])} is the model, delete the index" if others else ""
        raise CheckpointError(f"{index} names files that are not in its directory: {brief(missing)}{beside}")
    return sorted(named)


def _foreign(names: set[str]) -> str:
    """Hint in a message at a file that looks like weights and is in no layout of Hugging Face's."""
    kind = "holds an adapter or another program's layout, which is not read"
    return next((f"; {name} {kind}" for name in sorted(names) if re.match(FOREIGN, name)), "")


def _gguf_in(path: Path) -> str:
    """Hint in a message at the GGUF file in a directory that is no model by itself."""
    return next((f"; give {file} itself" for file in sorted(path.glob("*.gguf"))), "")
