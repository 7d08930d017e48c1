"""The facts in the headers of models, kept by path: headers with a large vocabulary take a tenth of a second to read.

The file `headers.json` of the cache folder has them. An entry counts for this version of tokenmill, while the size, the
times and the place of each of the model's files are the same. What depends on the machine is not kept.
"""

import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf

from tokenmill.errors import CheckpointError
from tokenmill.hub.download import cache_folder
from tokenmill.memory.atomic_file import make_folder, seal, unseal, writing
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.text.templates import templates_from_gguf
from tokenmill.text.tokenizer import read_json
from tokenmill.version import __version__
from tokenmill.weights.chat_template import has_chat_template
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.fingerprint import file_state, files_of
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.packed.reader import is_packed_model, read_header, settings_of
from tokenmill.weights.packed.verified import SETTLED_S

FILE = "headers.json"
_FORMAT = 1


@dataclass(frozen=True)
class Headers:
    """The facts. config: as the checkpoint has it. settings: with which a packed model must be loaded.

    form: the usual name of the form of the numbers, such as Q4_K_M or gptq; "" for plain numbers. titles: names that
    the files give the model. is_instruct: it has a chat template; None where that cannot be told.
    """

    config: dict[str, Any]
    settings: dict[str, Any]
    form: str
    num_parameters: int
    titles: list[str]
    is_instruct: bool | None


class KnownHeaders:
    """The headers that were read before, and those that are read now."""

    def __init__(self) -> None:
        self._path = cache_folder() / FILE
        self._found: dict[str, Any] = {}
        self._is_changed = False
        with suppress(OSError, ValueError):  # headers.json is missing or damaged
            found = unseal(self._path.read_bytes(), _FORMAT)
            self._found = found["headers"] if found.get("version") == __version__ else {}

    def read(self, path: Path) -> tuple[ModelConfig, Headers]:
        """Read the headers of a model, unless they are known. Errors as open_checkpoint and read_config."""
        name, state = str(path.absolute()), _state(path)
        known = self._found.get(name)
        if known is not None and state is not None and known["state"] == state:
            headers = Headers(**known["headers"])
            return read_config(headers.config), headers
        checkpoint = open_checkpoint(path)
        config, headers = read_config(checkpoint.config), _headers(checkpoint)
        if state is not None and state == _state(path):
            self._found[name], self._is_changed = {"state": state, "headers": asdict(headers)}, True
        return config, headers

    def save(self) -> None:
        """Write what was read now, where the folder can be written. Entries of models that are gone are left out."""
        if not self._is_changed:
            return
        with suppress(OSError):
            kept = {name: entry for name, entry in self._found.items() if Path(name).exists()}
            make_folder(self._path.parent)
            with writing(self._path, sync=False) as out:
                out.write(seal({"version": __version__, "headers": kept}, _FORMAT).encode())


def _state(path: Path) -> list[list[Any]] | None:
    """Describe the files of a model; None while one of them may change unseen."""
    files = [file for part in files_of(path).values() for file in part]
    states = [file_state(file) for file in files]
    if any(state is None or time.time() - state[-1] / 1e9 <= SETTLED_S for state in states):
        return None
    return [[file.name, *(state or ())] for file, state in zip(files, states, strict=True)]


def _headers(checkpoint: Checkpoint) -> Headers:
    path, settings, title = checkpoint.path, dict[str, Any](), checkpoint.config.get("_name_or_path")
    if is_packed_model(path):
        facts, _ = read_header(path)
        settings, form = dict(settings_of(facts)), f"{facts['dtype']} {facts['scheme']}, packed"
    elif isinstance(checkpoint, GGUFCheckpoint):
        form = _file_type(checkpoint.metadata.get("general.file_type")) or checkpoint.largest_type
        title = checkpoint.metadata.get("general.name")
    else:
        form = _codes_of(path)
    num_parameters = sum(map(prod, checkpoint.shapes.values()))
    titles = [title] if isinstance(title, str) and title else []
    return Headers(dict(checkpoint.config), settings, form, num_parameters, titles, is_instruct(path, checkpoint))


def is_instruct(path: Path, checkpoint: Checkpoint | None = None) -> bool | None:
    """Tell whether a model has a chat template; None where that cannot be told. checkpoint: the model, if opened."""
    try:
        if isinstance(checkpoint, GGUFCheckpoint):
            return "default" in templates_from_gguf(checkpoint.metadata)
        return has_chat_template(path)
    except (CheckpointError, OSError):
        return None


def _codes_of(path: Path) -> str:
    """Name the maker of a directory's codes, with their bits if told, as "gptq, 4 bits"; "" for numbers."""
    if not (path / "config.json").is_file():  # Meta's own layout
        return ""
    settings = read_json(path / "config.json").get("quantization_config")
    settings = settings if isinstance(settings, dict) else {}
    method, bits = settings.get("quant_method"), settings.get("bits")
    if not isinstance(method, str):
        return ""
    return f"{method}, {bits} bits" if type(bits) is int else method


def _file_type(number: object) -> str:
    """Find llama.cpp's name of a file's type, such as Q4_K_M; "" where it has no name."""
    try:
        name = gguf.LlamaFileType(number).name if type(number) is int else ""
    except ValueError:
        return ""
    return re.sub("^(MOSTLY|ALL)_", "", name) if name != "GUESSED" else ""
