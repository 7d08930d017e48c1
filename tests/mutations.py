"""Damaged and hostile files, made from good ones by seeded mutations.

`mutate_bytes` and `mutate_json` change bytes and JSON documents. A Case knows one kind of file: how a good one is
made, how a mutated one is written, and how it is opened and used. `outcome` runs one mutation through the real load
path and a short generation, under limits on time and address space.
"""

import contextlib
import copy
import faulthandler
import json
import math
import resource
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file

from tests import gguf_files
from tests.integrity import check_scheduler
from tests.tiny_models import TINY, prompt, save
from tests.weights.codes.test_of_others import coded_llama
from tests.weights.meta import test_checkpoint as meta
from tokenmill import TokenmillError, load
from tokenmill.cache.header import KEY
from tokenmill.cache.snapshot import read_snapshot, write_snapshot
from tokenmill.hub.progress import Silent
from tokenmill.loader.pack import save_packed_model
from tokenmill.memory.atomic_file import checksum_of
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.packed.reader import MAGIC, begin_file
from tokenmill.weights.write.convert import convert
from tokenmill.weights.write.quantize import quantize

SECONDS, BYTES = 20, 1 << 30
"""The time that one mutated file may take, and the address space beyond what the process has."""

DEEP = "a value nested a hundred thousand deep"
HOSTILE = [
    *(None, True, False, 0, -1, 1, 2, 3, 7, 64, 211, 65536, 2**24, 2**31 - 1, 2**31, 2**63, 2**64, 10**30, -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, 48.0, 1e-320, 1e-8, 1e30, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "0", "1", "true", "float32", "default", "yarn", "../x", "\0", "\ud800", "a" * 100_000, DEEP),
    *([], [0], [-1], [2**40], [None], ["x"], [[]], [0] * 1000, {}, {"a": 1}, {"": None}, {"type": "yarn"}),
]
SETTINGS = {"max_length": 48, "threads": 1, "dtype": "auto"}


# ---- mutations


def hostile(rng: Random) -> Any:
    """A copy: a later mutation may change it."""
    return copy.deepcopy(rng.choice(HOSTILE))


def mutate_bytes(rng: Random, data: bytes, first: int = 0, last: int | None = None) -> bytes:
    """One to three changes between `first` and `last`: flips, extremes, gaps, repeats, swaps, a cut, a tail."""
    changed, last = bytearray(data), len(data) if last is None else last
    for _ in range(rng.randint(1, 3)):
        last = max(min(last, len(changed)), first + 1)
        at = min(rng.randrange(first, last), max(len(changed) - 1, 0))
        size = rng.choice([1, 2, 4, 8, 64])
        kind = rng.randrange(8)
        if not changed:
            break
        if kind < 3:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            changed[at : at + size] = rng.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * size
        elif kind == 4:
            changed[at : at + 8] = rng.choice([0, 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]).to_bytes(
                8, "little"
            )
        elif kind == 5:
            del changed[at : at + size]
        elif kind == 6:
            changed[at:at] = changed[at : at + size]
        else:
            del changed[at:]
    return bytes(changed)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key of a JSON document."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutate_value(rng: Random, document: Any) -> Any:
    """One to three changes: hostile values, deleted, renamed and unknown keys, swapped values, nudged numbers."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        found = list(places(document))
        if not found:
            return hostile(rng)
        # Half of the time near the top: a vocabulary has thousands of places, of which few mean much.
        container, key = rng.choice(
            [(document, key) for _, key in found if _ is document] if rng.random() < 0.5 else found
        )
        kind = rng.randrange(8)
        if kind < 4:
            container[key] = hostile(rng)
        elif kind == 4:
            del container[key]
        elif kind == 5:
            other, where = rng.choice(found)
            with contextlib.suppress(KeyError, IndexError):
                container[key], other[where] = copy.deepcopy(other[where]), copy.deepcopy(container[key])
        elif kind == 6 and type(container[key]) in (int, float):
            container[key] = container[key] * rng.choice([-1, 0.5, 2, 3, 1000]) + rng.choice([0, 0, 1, -1])
        elif isinstance(container, dict):
            container[rng.choice(["", "unknown", f"{key} ", *(str(k) for _, k in found[:50])])] = hostile(rng)
    return document


def mutate_json(rng: Random, text: str) -> bytes:
    """A JSON document with other values, a key twice, or damaged text."""
    if rng.random() < 0.15:
        return mutate_bytes(rng, text.encode())
    changed = json.dumps(mutate_value(rng, json.loads(text)))
    changed = changed.replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)
    if rng.random() < 0.1 and changed.startswith("{"):
        key = rng.choice(list(json.loads(text)))
        changed = "{" + f"{json.dumps(key)}: {json.dumps(hostile(rng))}, " + changed[1:]
    return changed.encode()


def mutate_safetensors(rng: Random, data: bytes) -> bytes:
    """Another header over the same data, with a length that fits, or other bytes."""
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.4:
        return mutate_bytes(rng, data, 0, 8 + size if rng.random() < 0.7 else None)
    header = mutate_json(rng, data[8 : 8 + size].decode())
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


# ---- what is mutated, and how it is used


def use(path: Path, rng: Random) -> None:
    """Load a model and let it say something."""
    program = "auto" if path.suffix == ".image" else rng.choice(["eager", "native"])
    engine = load(path, program=program, **SETTINGS)
    most = max(engine.model_config.vocab_size, 1)
    tokens = [token % most for token in prompt(5)]
    done = engine.generate(tokens, max_new_tokens=3, min_new_tokens=rng.choice([0, 0, 2]))
    assert len(done.tokens) <= 3
    if engine.tokenizer is not None:
        engine.generate("the cat", max_new_tokens=2)


def directory(family: str) -> Callable[[Path], Path]:
    return lambda folder: save(family, folder / "good")


def sharded(folder: Path) -> Path:
    return save("llama", folder / "shards", max_shard_size="40KB")


def binary(folder: Path) -> Path:
    """A directory whose weights are pickled by torch."""
    path = shutil.copytree(save("llama", folder / "good"), folder / "binary", dirs_exist_ok=True)
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


def gguf(name: str, kind: str) -> Callable[[Path], Path]:
    number = gguf_files.gguf.GGMLQuantizationType[kind]
    return lambda folder: gguf_files.write(folder / f"{name}-{kind}.gguf", name, number)


def with_tokenizer(folder: Path) -> Path:
    path = folder / "text"
    return path if path.exists() else convert(open_checkpoint(gguf("llama", "F32")(folder)), path, "auto", Silent())


def rounded(folder: Path) -> Path:
    if not (folder / "rounded").exists():
        quantize(open_checkpoint(save("llama", folder / "good")), folder / "rounded", Silent())
    return folder / "rounded"


def of_others(kind: str) -> Callable[[Path], Path]:
    """A tiny Llama of one layer whose MLP is in the codes of another program."""
    return lambda folder: coded_llama(kind, folder / kind)


def own_layout(folder: Path) -> Path:
    return meta.written(folder / "meta", meta.PARAMS, meta.original(meta.PARAMS), 2)


def packed(folder: Path) -> Path:
    config = EngineConfig(program="native", dtype="float32")
    save_packed_model(open_checkpoint(with_tokenizer(folder)), config, folder / "packed.image", lambda *_: None)
    return folder / "packed.image"


def mutate_packed(rng: Random, data: bytes) -> bytes:
    """Other bytes, or another header with a checksum that fits it."""
    at, length = (int.from_bytes(data[begin : begin + 8], "little") for begin in (len(MAGIC), len(MAGIC) + 8))
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, 0, None) if rng.random() < 0.5 else mutate_bytes(rng, data, at, at + length)
    new = mutate_value(rng, json.loads(data[at : at + length])["facts"])
    text = json.dumps({"facts": new, "checksum": checksum_of(new)}).encode()
    front = begin_file(at, len(text))
    return front + data[len(front) : at] + text + data[at + length :]


class Case:
    """One file of one kind of model. `name`: of the file inside the model's directory, none where it is the model."""

    def __init__(self, make: Callable[[Path], Path], name: str, mutate: Callable[[Random, bytes], bytes]) -> None:
        self.make, self.file, self.mutate = make, name, mutate
        self._good: Path | None = None

    def run(self, folder: Path, rng: Random) -> None:
        """Mutate, open, use."""
        use(self.write(folder, rng), rng)

    def write(self, folder: Path, rng: Random) -> Path:
        """The model with a mutated file."""
        if self._good is None:
            self._good = self.make(folder)
        good, bad = self._good, folder / "bad"
        shutil.rmtree(bad, ignore_errors=True)
        bad.mkdir()
        if not self.file:
            path = bad / good.name
            path.write_bytes(self.mutate(rng, good.read_bytes()))
            return path
        for file in good.iterdir():
            if file.name != self.file:
                (bad / file.name).symlink_to(file)
        (bad / self.file).write_bytes(self.mutate(rng, (good / self.file).read_bytes()))
        return bad


class SessionCase:
    """A saved session, opened by an engine that lives through all of them."""

    def __init__(self, program: str) -> None:
        self._engine: Any = None
        self._program = program

    def run(self, folder: Path, rng: Random) -> None:
        """Mutate, open, generate; what was refused must leave nothing behind."""
        good, bad = folder / f"{self._program}.kv", folder / "bad.kv"
        if self._engine is None:
            self._engine = load(save("llama", folder / "good"), block_size=4, program=self._program, **SETTINGS)
            with self._engine.session(prompt(9)) as session:
                session.generate(max_new_tokens=4, temperature=0.5, seed=3)
                session.save(good)
        engine = self._engine
        self.write(rng, good, bad)
        try:
            with engine.open_session(bad, convert=rng.random() < 0.3) as session:
                session.generate(max_new_tokens=3)
                session.rewind(2)
        finally:
            engine.core.call(lambda: check_scheduler(engine.core.scheduler))
            assert engine.core.scheduler.allocator.num_free == engine.core.scheduler.allocator.num_blocks

    @staticmethod
    def write(rng: Random, good: Path, bad: Path) -> None:
        """Other bytes; another header whose checksum fits; or other tensors with a header that fits them."""
        kind = rng.randrange(4)
        if kind == 0:
            bad.write_bytes(mutate_safetensors(rng, good.read_bytes()))
            return
        snapshot = read_snapshot(good)
        facts, rows = dict(snapshot.facts), dict(snapshot.rows)
        if kind == 1:
            name = rng.choice(list(rows))
            change = rng.choice(["drop", "cut", "flat", "dtype", "twice", "other"])
            tensor = rows.pop(name)
            made = {
                "cut": lambda: tensor[: rng.randrange(len(tensor))],
                "flat": tensor.flatten,
                "dtype": lambda: tensor.to(rng.choice([torch.bfloat16, torch.float64, torch.int8])),
                "twice": lambda: tensor.repeat(2, 1, 1),
                "other": lambda: tensor * math.nan,
            }.get(change)
            rows |= {} if made is None else {name if rng.random() < 0.8 else "9.k": made()}
            if rng.random() < 0.3:
                facts["num_rows"] = rng.choice([0, 1, 12, 13, 14])
            for key in ("data_checksum", "format", "byteorder"):
                del facts[key]
            write_snapshot(bad, facts, rows)
            return
        changed = mutate_value(rng, facts)
        text = json.dumps({"facts": changed, "checksum": checksum_of(changed)})
        data = good.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header["__metadata__"][KEY] = text
        line = json.dumps(header).encode()
        line += b" " * (-len(line) % 8)
        bad.write_bytes(len(line).to_bytes(8, "little") + line + data[8 + size :])


def as_json(rng: Random, data: bytes) -> bytes:
    return mutate_json(rng, data.decode())


def in_gguf_header(rng: Random, data: bytes) -> bytes:
    """Half of the time among the metadata's first pairs, which say what the model is."""
    return mutate_bytes(rng, data, 0, rng.choice([1500, len(data) // 3, len(data)]))


# Between them they read every kind of key.
FEW = """llama qwen2-window mixtral gpt2 gpt_neox gpt_bigcode llama-yarn llama-llama3 qwen2_moe-departures
    granitemoehybrid-experts stablelm-parallel glm4_moe gpt_oss ernie4_5_moe apertus minimax_m2""".split()


def configs(names: Iterable[str]) -> list[Any]:
    return [Case(directory(name), "config.json", as_json) for name in names]


CASES: dict[str, list[Any]] = {
    "config": configs(FEW),
    "config of every family": configs(name for name in TINY if name not in FEW),
    "safetensors": [
        Case(directory("llama"), "model.safetensors", mutate_safetensors),
        Case(sharded, "model.safetensors.index.json", as_json),
        Case(directory("gpt2"), "model.safetensors", mutate_safetensors),
    ],
    "bin": [Case(binary, "pytorch_model.bin", mutate_bytes)],
    "gguf": [
        Case(gguf("llama", "F32"), "", in_gguf_header),
        Case(gguf("gpt2", "Q4_0"), "", in_gguf_header),
        Case(gguf("mixtral", "Q8_0"), "", in_gguf_header),
        Case(gguf("qwen2", "Q5_0"), "", in_gguf_header),
    ],
    "tokenizer": [
        Case(with_tokenizer, name, as_json)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")
    ],
    "quantized": [
        Case(rounded, "config.json", as_json),
        Case(rounded, "model.safetensors", mutate_safetensors),
    ],
    "coded": [
        Case(of_others(kind), name, mutate)
        for kind in (
            "compressed 4 bits with zeros",
            "compressed fp8 in blocks",
            "nf4 nested",
            "LLM.int8",
            "MLX affine 4 by 32",
            "auto_round:auto_gptq 3 by 32",
            "AWQ gemv_fast by 64",
        )
        for name, mutate in (("config.json", as_json), ("model.safetensors", mutate_safetensors))
    ],
    "own": [Case(own_layout, "params.json", as_json), Case(own_layout, "consolidated.01.pth", mutate_bytes)],
    "session": [SessionCase("eager"), SessionCase("native")],
    "packed": [Case(packed, "", mutate_packed)],
}


# ---- one mutation under limits


class TooSlow(BaseException):
    """A mutated file took longer than SECONDS."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Bound time and address space. Where Python never comes back, a stack is printed and the process ends."""

    def stop(*_: object) -> None:
        raise TooSlow

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def outcome(kind: str, number: int, folder: Path) -> str:
    """ "served", or "refused: …" by an error of ours; any other exception is a defect and is raised."""
    rng = Random(f"{kind} {number}")
    case = CASES[kind][number % len(CASES[kind])]
    try:
        with limited():
            case.run(folder, rng)
    except TokenmillError as error:
        return f"refused: {error}"
    return "served"
