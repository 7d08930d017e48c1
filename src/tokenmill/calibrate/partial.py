"""What an interrupted calibration has done: a directory beside the output, with the texts and a file for each layer.

A later run with the same settings goes on from there. Everything is checked when it is read, and written atomically.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from tokenmill.calibrate.texts import Texts
from tokenmill.errors import CheckpointError, ConfigError, file_errors
from tokenmill.memory.atomic_file import writing
from tokenmill.quant.stored import GROUP, Stored, joined_nibbles, split_nibbles
from tokenmill.value_reader import brief

__all__ = ["Partial"]


class Partial:
    """The directory OUT.partial. settings: all that decides how the matrices are rounded, as JSON."""

    def __init__(self, out: Path, settings: Mapping[str, Any], group: int) -> None:
        self.path, self._group = out.with_name(f"{out.name}.partial"), group
        self._places: dict[str, tuple[Path, int]] = {}  # of each matrix: its file and its bits
        file, self._settings = self.path / "settings.json", json.loads(json.dumps(settings))
        wanted = self._settings
        if not file.exists():
            return
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged(file, error) from None
        if found != wanted:
            other = [key for key in wanted if not isinstance(found, dict) or found.get(key) != wanted[key]]
            allowed = f"a name whose {self.path.name} was begun with the same settings (others: {', '.join(other)})"
            raise ConfigError("output", str(out), f"{allowed}; delete that directory to begin anew")

    def texts(self) -> dict[str, Texts]:
        """What `keep_texts` was given, or nothing."""
        file = self.path / "texts.json"
        if not file.exists():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return {key: Texts(tokens, origin) for key, (tokens, origin) in found.items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise self._damaged(file, error) from None

    def keep_texts(self, texts: Mapping[str, Texts]) -> None:
        """The first that is kept; with it the directory is made."""
        with file_errors(self.path, "written"):
            self.path.mkdir(parents=True, exist_ok=True)
            _write(self.path / "settings.json", json.dumps(self._settings, indent=2).encode())
            _write(self.path / "texts.json", json.dumps(texts).encode())

    def eight_bits(self) -> list[str] | None:
        """The tensors that `keep_eight_bits` was given, if it was."""
        file = self.path / "eight_bits.json"
        if not file.exists():
            return None
        try:
            names = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._damaged(file, error) from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._damaged(file, ValueError("no list of names"))
        return names

    def keep_eight_bits(self, names: list[str]) -> None:
        """The tensors that get 8 bits in a model of 4."""
        with file_errors(self.path, "written"):
            _write(self.path / "eight_bits.json", json.dumps(names).encode())

    def has_layer(self, number: int) -> bool:
        return self._layer(number).exists()

    def keep_layer(self, number: int, found: Mapping[str, Stored], changes: Mapping[str, tuple[float, float]]) -> None:
        """All matrices of a layer, and Rounding.changes of them."""
        tensors = {}
        for name, stored in found.items():
            assert stored.codes is not None and stored.scales is not None, "rounded to codes"
            codes, step = stored.codes, self._group // GROUP
            tensors[f"{name}:codes"] = codes if stored.bits == 8 else joined_nibbles(codes)
            tensors[f"{name}:scales"] = stored.scales[:, ::step].half()
            if stored.minimums is not None:
                tensors[f"{name}:minimums"] = stored.minimums[:, ::step].contiguous()
        facts = {"bits": {name: stored.bits for name, stored in found.items()}, "changes": changes}
        with file_errors(self.path, "written"):
            _write(self._layer(number), safetensors.torch.save(tensors, {"facts": json.dumps(facts)}))
        self._places |= {name: (self._layer(number), stored.bits) for name, stored in found.items()}

    def read_layer(self, number: int) -> dict[str, tuple[float, float]]:
        """The changes of a layer, whose matrices `matrix` can then read."""
        file = self._layer(number)
        facts = self._facts(file)
        self._places |= {name: (file, bits) for name, bits in facts["bits"].items()}
        return {name: (float(before), float(after)) for name, (before, after) in facts["changes"].items()}

    def matrix(self, name: str) -> Stored | None:
        """The codes of a matrix of a layer that was kept or read."""
        if name not in self._places:
            return None
        file, bits = self._places[name]
        try:
            with safe_open(file, framework="pt") as opened:
                there = {part: f"{name}:{part}" for part in ("codes", "scales", "minimums")}
                parts = {part: opened.get_tensor(key) for part, key in there.items() if key in opened.keys()}  # noqa: SIM118
            codes_RK = split_nibbles(parts["codes"]) if bits == 4 else parts["codes"]
            return Stored.of_groups(bits, codes_RK, self._group, parts["scales"].float(), parts.get("minimums"))
        except (SafetensorError, OSError, KeyError, RuntimeError, IndexError) as error:
            raise self._damaged(file, error) from None

    def remove(self) -> None:
        """Everything is written elsewhere."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _layer(self, number: int) -> Path:
        return self.path / f"layer-{number:04}.safetensors"

    def _facts(self, file: Path) -> Any:
        try:
            with safe_open(file, framework="pt") as opened:
                facts = json.loads(opened.metadata()["facts"])
            if not isinstance(facts["bits"], dict) or not isinstance(facts["changes"], dict):
                raise ValueError("its facts are no mappings")
            return facts
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(file, error) from None

    def _damaged(self, file: Path, error: Exception) -> CheckpointError:
        return CheckpointError(f"{file} is damaged ({brief(str(error))}): delete {self.path} to begin anew")


def _write(file: Path, content: bytes) -> None:
    with writing(file) as out:
        out.write(content)
