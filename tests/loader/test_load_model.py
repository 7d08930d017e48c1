"""Loading: what is refused, warned of or noted before a weight is read, and what a loaded model says of itself."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.marks import needs_native
from tokenmill.cache.spec import RowsSpec
from tokenmill.errors import CapacityError, CheckpointError, ConfigError, PackageMismatch
from tokenmill.kernels.threads import torch_threads
from tokenmill.loader import compile as compiling
from tokenmill.loader import load_model as module
from tokenmill.loader import ranks
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.pack import save_packed_model
from tokenmill.model.config import Rope
from tokenmill.program.aot import program as aot
from tokenmill.program.parts import Opened
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import size
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import open_checkpoint

EAGER = {"program": "eager", "scheme": "dense", "dtype": "float32", "device": "cpu", "threads": 1}


def resolved_of(path, **settings):
    checkpoint = open_checkpoint(path)
    return checkpoint, resolve_checkpoint(checkpoint, EngineConfig(**EAGER | settings))


def loaded_of(path, progress=None, **settings):
    return load_model(*resolved_of(path, **settings), progress)


def test_a_loaded_model_says_what_it_is(llama):
    told = []
    loaded = loaded_of(llama, lambda done, total: told.append((done, total)), max_length=40, model=str(llama))
    numbers = 2 * 211 * 48 + 48 + 2 * (2 * 48 + 2 * 48 * 48 + 2 * 16 * 48 + 3 * 48 * 80)
    assert told[0] == (0, numbers) and told[-1] == (numbers, numbers) and told == sorted(told)
    assert loaded.memory == {
        "weights_bytes": 4 * numbers,
        "matrix_bytes": 4 * (numbers - 211 * 48),  # all but the table of tokens
        "cache_bytes": 40 * 2 * 2 * 2 * 8 * 4,
    }
    assert (loaded.program_name, loaded.kernel_name, loaded.config.max_length) == ("eager", "rows", 40)
    assert loaded.model_config.num_layers == 2 and loaded.tokenizer is None and loaded.generation_defaults == {}
    assert loaded.compatibility == {
        "model": str(llama),
        "fingerprint": loaded.fingerprint,
        "shape": {"num_layers": 2, "num_kv_heads": 2, "head_dim": 8},
        "rope": loaded.model_config.rope.text,
        "cache_format": "dense",
        "dtype": "float32",
        "scheme": "dense",
        "program": "eager",
        "build": loaded.program.build_id,
        "kernel": "rows",
        "fuse": "qkv,gate_up",
        "compile": ["auto", "decode", "inductor"],
        "versions": {"tokenmill": __version__, "torch": str(torch.__version__)},
    }
    loaded.release()
    assert not {"program", "pool", "runner"} & vars(loaded).keys() and loaded.program_name == "eager"
    loaded.release()


def test_rows_know_which_list_of_longrope_rotated_them(llama):
    loaded, lists = loaded_of(llama, max_length=33), (("original_max_position_embeddings", 32),)
    long = replace(loaded.model_config, rope=Rope(8, 1e4, "longrope", lists))
    loaded.resolved = replace(loaded.resolved, model=long)
    texts = []
    for max_length in (32, 33, 34):
        loaded.resolved = replace(loaded.resolved, config=replace(loaded.config, max_length=max_length))
        texts.append(loaded.compatibility["rope"])
    assert texts[0] == long.rope.text != texts[1] == texts[2]


def test_layers_that_differ_are_listed(llama):
    loaded = loaded_of(llama)
    for layers, wanted in (
        ((RowsSpec(2, 8), RowsSpec(4, 8)), {"num_layers": 2, "num_kv_heads": [2, 4], "head_dim": 8}),
        ((RowsSpec(2, 8),), {"num_layers": 1, "num_kv_heads": 2, "head_dim": 8}),
        ((RowsSpec(2, 8, value_dim=8),), {"num_layers": 1, "num_kv_heads": 2, "head_dim": 8}),
        ((RowsSpec(2, 8, value_dim=4),), {"num_layers": 1, "num_kv_heads": 2, "head_dim": 8, "value_dim": 4}),
    ):
        loaded.resolved = replace(loaded.resolved, cache=replace(loaded.resolved.cache, layers=layers))
        assert loaded.compatibility["shape"] == wanted


def test_a_name_that_is_no_path_stays_one(llama, monkeypatch, tmp_path):
    assert loaded_of(llama, model="smollm2-135m").compatibility["model"] == "smollm2-135m"
    monkeypatch.chdir(llama.parent)
    assert loaded_of(llama, model="llama").compatibility["model"] == str(llama.resolve())


def test_torch_computes_in_the_threads_of_the_settings(llama):
    for threads in (1, 2):
        before = torch.get_num_threads()
        with torch_threads(loaded_of(llama, threads=threads).num_torch_threads):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == before


@needs_native
def test_a_program_with_threads_of_its_own_leaves_torch_one(llama, caplog):
    loaded = loaded_of(llama, program="native", threads=2)
    assert loaded.config.threads == 2 and not caplog.messages
    assert loaded.num_torch_threads == 1


@pytest.mark.parametrize(
    ("fuse", "scheme", "is_refused"),
    [
        ("qkv", "dense", False),
        ("qkv", "q8", True),
        ("gate_up", "q8", True),
        ("qkv,gate_up", "q8", False),
        ("none", "q8", True),
    ],
)
def test_only_plain_matrices_are_left_unfused(llama, fuse, scheme, is_refused):
    if not is_refused:
        assert loaded_of(llama, fuse=fuse, scheme=scheme).config.fuse == fuse
        return
    said = f"fuse = '{fuse}' is not allowed: with qkv and gate_up, because scheme is 'q8', not dense"
    with pytest.raises(ConfigError, match=said):
        loaded_of(llama, fuse=fuse, scheme=scheme)


@pytest.mark.parametrize("how", ["sampled", "full"])
def test_the_fingerprint_is_as_it_was_asked_for(llama, how):
    digests = loaded_of(llama, fingerprint=how).fingerprint
    assert all(digest.startswith("full ") == (how == "full") for digest in digests.values())


@needs_native
def test_only_a_packed_model_is_overwritten(llama, tmp_path):
    config, file = EngineConfig(program="native", threads=1), tmp_path / "x.packed"
    file.write_text("mine")
    with pytest.raises(CheckpointError, match=r"x.packed is there and is no packed model: it is not overwritten$"):
        save_packed_model(open_checkpoint(llama), config, file, lambda *_: None)
    assert file.read_text() == "mine"
    file.unlink()
    sizes = {save_packed_model(open_checkpoint(llama), config, file, lambda *_: None) for _ in range(2)}
    assert sizes == {file.stat().st_size}
    with pytest.raises(ConfigError, match="program = 'eager' is not allowed: native: only its weights are packed"):
        save_packed_model(open_checkpoint(llama), EngineConfig(program="eager"), tmp_path / "y", lambda *_: None)


@needs_native
def test_a_packed_model_has_the_settings_that_it_was_made_for(llama, tmp_path):
    packed = tmp_path / "x.packed"
    config = EngineConfig(program="native", dtype="bfloat16", scheme="q8", threads=1)
    size = save_packed_model(open_checkpoint(llama), config, packed, lambda *_: None)
    assert size == packed.stat().st_size
    checkpoint = open_checkpoint(packed)
    assert checkpoint.facts["copy"] is None and checkpoint.facts["source"] == str(llama.resolve())
    assert checkpoint.facts["versions"] == {"tokenmill": __version__, "torch": torch.__version__}
    assert checkpoint.facts["rounded"] == ""
    loaded = load_model(checkpoint, resolve_checkpoint(checkpoint, EngineConfig(threads=1, dtype="bf16")))
    assert (loaded.program_name, loaded.config.dtype, loaded.config.scheme) == ("native", "bfloat16", "q8")
    assert loaded.fingerprint == checkpoint.facts["fingerprint"]
    for name, value in {"program": "eager", "dtype": "float32", "scheme": "q4"}.items():
        wanted = {"program": "native", "dtype": "bfloat16", "scheme": "q8"}[name]
        with pytest.raises(
            ConfigError, match=rf"{name} = '{value}' is not allowed: {wanted}: .*x.packed is packed for"
        ):
            resolve_checkpoint(checkpoint, EngineConfig(**{name: value}))
    checkpoint = open_checkpoint(packed)
    resolved = resolve_checkpoint(checkpoint, EngineConfig(threads=1, fingerprint="full"))
    with pytest.raises(ConfigError, match=r"fingerprint = 'full' is not allowed: sampled, because .*x.packed was made"):
        load_model(checkpoint, resolved)


def test_a_cache_that_the_system_refuses_is_told_with_what_would_help(llama, monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot allocate\nand more")

    monkeypatch.setattr(ranks, "Pool", refuse)
    monkeypatch.setattr(module, "free_bytes", lambda device: {"cpu": 1000}[device])
    with pytest.raises(CapacityError) as raised:
        loaded_of(llama, max_length=40)
    what = (
        "memory for a cache of 40 tokens, which the system refuses (cannot allocate): 10.2 kB needed, 1.0 kB available"
    )
    assert str(raised.value) == f"{what}; change max_length, max_sequences or cache_tokens"
    for error, reason in (
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
        (MemoryError(), "no reason"),
    ):
        monkeypatch.setattr(ranks, "Pool", lambda *_, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(CapacityError, match=rf"which the system refuses \({reason}\)"):
            loaded_of(llama, max_length=40)


def test_weights_for_which_a_gpu_has_no_memory_are_told_with_what_was_free(llama, monkeypatch):
    """As beside another engine on the same card; what was free is asked before the load has taken some of it."""
    free = iter((2000, 10))
    monkeypatch.setattr(module, "free_bytes", lambda device: next(free))
    monkeypatch.setattr(Opened, "load_decoder", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA")))
    with pytest.raises(CapacityError) as raised:
        loaded_of(llama, max_length=40)
    needed = size(resolved_of(llama)[1].weight_bytes)
    what = f"memory of cpu for the weights, beside the cache and other engines there: {needed} needed, 2.0 kB available"
    assert str(raised.value) == f"{what}; change model, scheme, max_length or max_sequences"


def test_a_package_that_does_not_fit_is_refused_or_left_out(llama, monkeypatch, caplog, tmp_path):
    given = {}

    def refuse(folder, made_for, device):
        given.update(folder=folder, on=device, made_for=made_for)
        raise PackageMismatch("the package is of another model")

    monkeypatch.setattr(aot, "open_package", refuse)
    settings = {"program": "auto", "aot_package": str(tmp_path)}
    with pytest.raises(PackageMismatch, match="the package is of another model"):
        loaded_of(llama, **settings)
    assert (given["folder"], given["on"]) == (Path(tmp_path), torch.device("cpu"))
    loaded = loaded_of(llama, **settings, aot_fallback=True)
    assert (loaded.program_name, loaded.config.aot_package) == ("eager", None)
    assert caplog.messages == ["the package is of another model; the plain modules serve"]


def test_what_was_chosen_instead_of_something_faster_is_noted(llama, caplog):
    checkpoint, resolved = resolved_of(llama)
    resolved = replace(resolved, program_refusals={"native": "has no such kernel"})
    with caplog.at_level(logging.INFO):
        load_model(checkpoint, resolved)
    assert caplog.messages == ["program eager runs, which is slower than native; that one has no such kernel"]
    caplog.clear()
    model, given = replace(resolved.model, dtype="float16"), replace(resolved.given, dtype="auto")
    with caplog.at_level(logging.INFO):
        load_model(checkpoint, replace(resolved, model=model, given=given, program_refusals={}))
    assert caplog.messages == [
        "the float16 checkpoint is computed in float32: on a CPU program eager would be slow in float16"
    ]


class Fits:
    """A tokenizer of so many tokens."""

    def __init__(self, num_tokens):
        self.num_tokens = num_tokens


@pytest.mark.parametrize(("num_tokens", "warned"), [(211, False), (212, True)])
def test_a_tokenizer_with_more_tokens_than_the_model_is_warned_of(llama, caplog, num_tokens, warned):
    checkpoint, resolved = resolved_of(llama)
    checkpoint.tokenizer = lambda: Fits(num_tokens)
    assert load_model(checkpoint, resolved).tokenizer.num_tokens == num_tokens
    said = f"{llama}: the tokenizer has 212 tokens and the model 211: a text with one of the others is refused"
    assert caplog.messages == ([said] if warned else [])


def test_what_a_package_is_written_from(llama, monkeypatch, tmp_path):
    """Without a compiler: what the writer of packages is given."""
    given = []
    monkeypatch.setattr(compiling, "write_package", lambda *what: given.append(what) or 77)
    config = EngineConfig(threads=1, dtype="float32", compile="static", max_sequences=4, compile_phases="both")

    class Told:
        advance = staticmethod(lambda done, total: None)

    told = Told()
    assert compiling.save_aot_package(open_checkpoint(llama), config, tmp_path / "out", told) == 77
    ((folder, decoder, pool, padded, phases, facts, progress),) = given
    assert (folder, phases, progress) == (tmp_path / "out", "both", told)
    assert facts["source"] == str(llama.resolve()) and facts["tokenmill"] == __version__
    assert decoder.config.num_layers == 2 and pool.spec.block_size == 128 and padded is not None
    assert pool.spec.num_blocks == 1, "for one sequence, whatever was asked for"
