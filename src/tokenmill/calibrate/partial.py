"""The finished layers of an interrupted calibration: a directory beside the output, with the texts and a file for each
layer.

A later run with the same settings goes on from there. Everything is written atomically and checked when it is read:
each file names its calibration and its layer. Only a directory that was made for this is used and deleted.
"""

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from tokenmill.calibrate.texts import Texts
from tokenmill.errors import CheckpointError, ConfigError, file_errors
from tokenmill.memory.atomic_file import seal, unseal, writing
from tokenmill.memory.bounded_folder import MarkedFolder
from tokenmill.memory.file_lock import locked
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.quant.nibbles import joined_nibbles, split_nibbles
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.value_reader import brief

log = logging.getLogger(__name__)

LOCK, FORMAT = ".lock", 1
NAMES = re.compile(r"\.lock|(settings|texts|eight_bits)\.json|layer-\d{4,}\.safetensors")


class Partial:
    """The directory OUT.partial. settings: everything that decides how the matrices are rounded, as JSON.

    group: inputs that share a scale. has_minimums: whether codes of 4 bits have minimums.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], group: int, has_minimums: bool) -> None:
        self.path, self._out = out.with_name(f"{out.name}.partial"), out
        self._folder = MarkedFolder(self.path, "calibration", NAMES)
        self._group, self._has_minimums = group, has_minimums
        self._settings = json.loads(json.dumps(settings))
        which = json.dumps([self._settings, group, has_minimums], sort_keys=True)
        self._id = hashlib.blake2b(which.encode(), digest_size=16).hexdigest()
        self._places: dict[str, tuple[Path, int]] = {}  # of each matrix: its file and its bits

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from quantising to the same output inside; ConfigError where one does, or where the
        directory was begun with other settings, or by another program. It is deleted at the end if nothing was kept in
        it.
        """
        with ExitStack() as stack:
            with file_errors(self.path, "written"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._folder.make()
                if self.path.exists() and not self._folder.is_marked():
                    allowed = f"a name beside which no other {self.path.name} lies: that is no calibration's"
                    raise ConfigError("output", str(self._out), allowed)
                try:
                    is_alone = stack.enter_context(locked(self.path / LOCK))
                except FileNotFoundError:  # another process was done, and has deleted the directory
                    is_alone = False
            if not is_alone:
                allowed = "a name that no other process is quantising to at this moment"
                raise ConfigError("output", str(self._out), allowed)
            try:
                self._check_settings()
                yield
            finally:
                if not (self.path / "settings.json").exists():
                    self.remove()

    def _check_settings(self) -> None:
        file, wanted = self.path / "settings.json", self._settings
        if not file.exists():
            return
        found = self._content(file, is_own=False)
        if not isinstance(found, dict):
            raise self._damaged(file, ValueError("no settings"))
        if found != wanted:
            other = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
            allowed = f"a name whose {self.path.name} was begun with the same settings (others: {', '.join(other)})"
            raise ConfigError("output", str(self._out), f"{allowed}; delete that directory to begin anew")

    def _content(self, file: Path, is_own: bool = True) -> Any:
        """Read what `_keep` was given. is_own: refuse what another calibration has kept."""
        try:
            facts = unseal(file.read_bytes(), FORMAT)
        except (OSError, ValueError) as error:
            raise self._damaged(file, error) from None
        if is_own and facts.get("calibration") != self._id:
            raise self._damaged(file, ValueError("it is of another calibration"))
        return facts.get("content")

    def _keep(self, name: str, content: Any) -> None:
        with file_errors(self.path, "written"):
            _write(self.path / name, seal({"calibration": self._id, "content": content}, FORMAT).encode())

    def texts(self, vocab_size: int) -> dict[str, Texts]:
        """Read what `keep_texts` was given, or nothing."""
        file = self.path / "texts.json"
        if not file.exists():
            return {}
        found = self._content(file)
        if not isinstance(found, dict) or "calibration" not in found:
            raise self._damaged(file, ValueError("no texts to calibrate with"))
        for each in found.values():
            if not _are_texts(each, vocab_size):
                raise self._damaged(file, ValueError("texts are lists of token ids, equally long, and their origin"))
        return {key: Texts(tokens, origin) for key, (tokens, origin) in found.items()}

    def keep_texts(self, texts: Mapping[str, Texts]) -> None:
        """Keep the texts, which come before all else."""
        self._keep("settings.json", self._settings)
        self._keep("texts.json", texts)

    def eight_bits(self, names: Collection[str]) -> list[str] | None:
        """Read the tensors that `keep_eight_bits` was given, if it was. names: all matrices."""
        file = self.path / "eight_bits.json"
        if not file.exists():
            return None
        found = self._content(file)
        if not isinstance(found, list) or not all(name in names for name in found) or len({*found}) < len(found):
            raise self._damaged(file, ValueError("it names other things than matrices"))
        return found

    def keep_eight_bits(self, names: list[str]) -> None:
        """Keep the tensors that get 8 bits in a model of 4."""
        self._keep("eight_bits.json", names)

    def has_layer(self, number: int) -> bool:
        return self._layer(number).exists()

    def keep_layer(self, number: int, found: Mapping[str, Stored], changes: Mapping[str, tuple[float, float]]) -> None:
        """Keep all matrices of a layer, and Rounding.changes of them."""
        tensors = {}
        for name, stored in found.items():
            assert stored.codes is not None and stored.scales is not None, "rounded to codes"
            codes, step = stored.codes, self._group // GROUP
            tensors[f"{name}:codes"] = codes if stored.bits == 8 else joined_nibbles(codes)
            tensors[f"{name}:scales"] = stored.scales[:, ::step].half()
            if stored.minimums is not None:
                tensors[f"{name}:minimums"] = stored.minimums[:, ::step].contiguous()
        which = {"calibration": self._id, "layer": number, "data_checksum": _checksum(tensors)}
        facts = {"bits": {name: stored.bits for name, stored in found.items()}, "changes": changes, **which}
        with file_errors(self.path, "written"):
            _write(self._layer(number), safetensors.torch.save(tensors, {"facts": seal(facts, FORMAT)}))
        self._places |= {name: (self._layer(number), stored.bits) for name, stored in found.items()}

    def read_layer(self, number: int, bits: Mapping[str, int]) -> dict[str, tuple[float, float]]:
        """Read the changes of a layer; `matrix` can then read its matrices. bits: of each matrix, by its name."""
        file = self._layer(number)
        facts = self._facts(file)
        if (facts.get("calibration"), facts.get("layer")) != (self._id, number):
            raise self._damaged(file, ValueError("it is of another calibration or layer"))
        if facts["bits"] != bits or not all(map(_are_changes, facts["changes"].values())):
            raise self._damaged(file, ValueError("it holds other matrices"))
        self._places |= {name: (file, bits) for name, bits in facts["bits"].items()}
        return {name: (float(before), float(after)) for name, (before, after) in facts["changes"].items()}

    def matrix(self, name: str, shape: tuple[int, ...]) -> Stored | None:
        """Return the codes [R, K] of a matrix of a layer that was kept or read."""
        if name not in self._places:
            return None
        file, bits = self._places[name]
        try:
            with held_interrupts(), safe_open(file, framework="pt") as opened:
                there = {part: f"{name}:{part}" for part in ("codes", "scales", "minimums")}
                parts = {part: opened.get_tensor(key) for part, key in there.items() if key in opened.keys()}  # noqa: SIM118
            self._check(bits, shape, parts)
            codes_RK = split_nibbles(parts["codes"]) if bits == 4 else parts["codes"]
            return Stored.of_groups(bits, codes_RK, self._group, parts["scales"].float(), parts.get("minimums"))
        except (SafetensorError, OSError, KeyError, RuntimeError, IndexError, ValueError) as error:
            raise self._damaged(file, error) from None

    def _check(self, bits: int, shape: tuple[int, ...], parts: Mapping[str, torch.Tensor]) -> None:
        """Raise ValueError where the parts of a matrix do not fit its shape."""
        num_rows, num_inputs = shape
        padded = -(-num_inputs // GROUP) * GROUP
        groups = num_rows, -(-padded // self._group)
        wanted = {"codes": ((num_rows, padded * bits // 8), torch.uint8), "scales": (groups, torch.float16)}
        if bits == 4 and self._has_minimums:
            wanted["minimums"] = groups, torch.float32
        found = {part: (tuple(tensor.shape), tensor.dtype) for part, tensor in parts.items()}
        if found != wanted:
            raise ValueError("its codes do not fit that matrix")

    def remove(self) -> None:
        """Remove what tokenmill has written into the directory; anything else stays, and is named."""
        with file_errors(self.path, "deleted"):
            others = self._folder.remove()
        if others:
            log.warning("%s stays, with what is not of the calibration: %s", self.path, ", ".join(others[:5]))

    def _layer(self, number: int) -> Path:
        return self.path / f"layer-{number:04}.safetensors"

    def _facts(self, file: Path) -> Any:
        try:
            with held_interrupts(), safe_open(file, framework="pt") as opened:
                facts = unseal(opened.metadata()["facts"], FORMAT)
                found = _checksum({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
            if not isinstance(facts["bits"], dict) or not isinstance(facts["changes"], dict):
                raise ValueError("its facts are no mappings")
            if facts["data_checksum"] != found:
                raise ValueError("its data do not match their checksum")
            return facts
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(file, error) from None

    def _damaged(self, file: Path, error: Exception) -> CheckpointError:
        return CheckpointError(f"{file} is damaged ({brief(str(error))}): delete {self.path} to begin anew")


def _write(file: Path, content: bytes) -> None:
    with writing(file) as out:
        out.write(content)


def _checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """Sum over names and bytes, in the order of the names."""
    total = 0
    for name in sorted(tensors):
        data = tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data
        total = zlib.crc32(data, zlib.crc32(name.encode(), total))
    return total


def _are_texts(found: Any, vocab_size: int) -> bool:
    """Tell whether `found` is in the form in which Texts are written."""
    if not (isinstance(found, list) and len(found) == 2 and isinstance(found[0], list) and isinstance(found[1], str)):
        return False
    texts = found[0]
    if not texts or not all(isinstance(text, list) and text and len(text) == len(texts[0]) for text in texts):
        return False
    return all(type(token) is int and 0 <= token < vocab_size for text in texts for token in text)


def _are_changes(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 2 and all(isinstance(each, float) for each in found)
