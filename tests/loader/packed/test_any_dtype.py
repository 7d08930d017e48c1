"""One packed copy for every dtype, of models whose matrices are the codes of their files."""

import shutil
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tests.gguf_files import KIND, converted, tiny, write, write_codes
from tests.loader.packed.test_copies_and_others import halves, start_writing
from tests.marks import needs_native
from tests.parallel.ranks_in_threads import RanksInThreads
from tests.tiny_models import prompt
from tests.weights.codes.test_mlx import written as mlx
from tests.weights.packed.conftest import replace, there
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader import packed_copy, ranks
from tokenmill.loader.copies import copies
from tokenmill.loader.load_model import resolve_checkpoint
from tokenmill.loader.pack import save_packed_model
from tokenmill.program.native import weights
from tokenmill.program.native.units import Run
from tokenmill.settings.engine_config import DTYPES, EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import ANY_DTYPE, BEGIN, read_header

__all__ = ["mlx"]

pytestmark = needs_native

LONG = prompt(40, seed=5)


@pytest.fixture
def opened(monkeypatch):
    """The kinds of checkpoints that models were loaded from."""
    kinds, real = [], packed_copy.load_model

    def load_model(checkpoint, *rest, **named):
        kinds.append("copy" if isinstance(checkpoint, PackedCheckpoint) else "model")
        return real(checkpoint, *rest, **named)

    monkeypatch.setattr(packed_copy, "load_model", load_model)
    return kinds


def as_float16(name: str, *labels: str) -> dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]:
    """These matrices of a tiny model in float16, beside others that are codes."""
    arrays = converted("llama", *tiny(name))
    return {label: (arrays[label].astype(np.float16), KIND.F16) for label in labels}


def experts(path: Path) -> Path:
    """Routers stay in floating point."""
    return write_codes(path, "mixtral-wide", [KIND.Q4_K, KIND.Q6_K])


def biases(path: Path) -> Path:
    return write(path, "llama-bias", KIND.Q8_0)


def tied(path: Path) -> Path:
    return write_codes(path, "llama-wide-tied", [KIND.Q5_K, KIND.IQ4_XS])


def positions(path: Path) -> Path:
    return write(path, "gpt2", KIND.Q8_0)


def mixed(path: Path) -> Path:
    """Matrices of several tensors, some codes and some not: v beside q and k, the gates beside the others."""
    labels = ("blk.0.attn_v.weight", "blk.1.ffn_gate.weight", "blk.0.ffn_down.weight")
    return write(path, "llama", KIND.Q4_0, stored=as_float16("llama", *labels))


@pytest.fixture
def model(tmp_path):
    return experts(tmp_path / "mixtral.gguf")


MODELS = [experts, biases, tied, positions, mixed]
FLOATS = [positions, mixed]  # tiny models have more of these for their codes than models have
ORDERS = [(first, *(other for other in DTYPES if other != first)) for first in DTYPES]


FIRST = [
    pytest.param(make, order, id=f"{make.__name__}-{order[0]}", marks=() if is_default else pytest.mark.long)
    for number, make in enumerate(MODELS)
    for place, order in enumerate(ORDERS)
    for is_default in [make in (experts, mixed) or place == number % 3]
]


@pytest.mark.parametrize(("make", "order"), FIRST)
def test_one_copy_has_the_bits_of_the_model_in_every_dtype(make, order, tmp_path, folder, opened, monkeypatch):
    """Whichever is loaded first."""
    if make in FLOATS:
        monkeypatch.setattr(weights, "FLOATS_SHARE", 10.0)
    one_copy_has_the_bits_of(make(tmp_path / "x.gguf"), [order], folder, opened)


def test_a_directory_of_codes_has_one_copy_too(mlx, folder, opened, monkeypatch):
    """With a matrix in floating point, and one of codes that only reading it tells are none that a scheme has."""
    monkeypatch.setattr(weights, "FLOATS_SHARE", 10.0)
    one_copy_has_the_bits_of(mlx[0], ORDERS[::2], folder, opened)


def one_copy_has_the_bits_of(path, orders, folder, opened):
    models = {dtype: load(path, dtype=dtype, packed_cache=False) for dtype in DTYPES}
    want = {dtype: engine.logits(LONG) for dtype, engine in models.items()}
    assert not torch.equal(want["float32"], want["bfloat16"])
    for order in orders:
        shutil.rmtree(folder, ignore_errors=True)
        opened.clear()
        for dtype in (*order, order[0]):
            engine = load(path, dtype=dtype)
            assert torch.equal(engine.logits(LONG), want[dtype]), (order, dtype)
            assert engine.config.dtype == dtype and engine.memory == models[dtype].memory
        assert opened == ["model"] + 3 * ["copy"]
        assert [copy.kind for copy in copies()] == ["native any-dtype file"]
        assert [name for name in there(folder) if "-native-any-dtype-file-" in name] == there(folder)


def test_codes_beside_rows_in_floating_point_are_there_once(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(weights, "FLOATS_SHARE", 10.0)
    load(mixed(tmp_path / "x.gguf"), dtype="bfloat16")
    (path,) = folder.glob("*.packed")
    told = read_header(path)[0]["weights"]["dtypes"]
    found = {dtype: [Run(*run) for runs in told[dtype]["floats"] for run in runs] for dtype in DTYPES}
    codes = [{run for run in runs if run.is_coded} for runs in found.values()]
    assert codes[0] == codes[1] == codes[2] != set()
    others = [run.address for runs in found.values() for run in runs if not run.is_coded]
    assert len(set(others)) == len(others) == 9, "v, the gates and a whole matrix in each dtype"


def test_a_dtype_that_nobody_named_is_the_one_of_the_model(model, folder, opened):
    want = load(model, packed_cache=False)
    other = next(dtype for dtype in DTYPES if dtype != want.config.dtype)
    load(model, dtype=other)
    engine = load(model)
    assert opened == ["model", "model", "copy"]
    assert engine.config.dtype == want.config.dtype and torch.equal(engine.logits(LONG), want.logits(LONG))


def no_codes_of_tokens(path: Path) -> Path:
    """The table that tokens are looked up in is no codes: it would be there three times."""
    return write(path, "llama", KIND.Q4_0, stored=as_float16("llama", "token_embd.weight"))


def no_codes(path: Path) -> Path:
    return write(path, "llama", KIND.F16)


@pytest.mark.parametrize(
    ("make", "scheme"), [(no_codes_of_tokens, "auto"), (no_codes, "auto"), (no_codes, "file"), (biases, "q8")]
)
def test_a_model_with_much_in_floating_point_has_a_copy_for_each_dtype(make, scheme, tmp_path, folder, opened):
    """And one whose matrices are rounded when it is loaded."""
    path = make(tmp_path / "x.gguf")
    want = {dtype: load(path, dtype=dtype, scheme=scheme, packed_cache=False).logits(LONG) for dtype in DTYPES}
    opened.clear()
    for dtype in (*DTYPES, *DTYPES):
        assert torch.equal(load(path, dtype=dtype, scheme=scheme).logits(LONG), want[dtype])
    assert opened == 3 * ["model"] + 3 * ["copy"]
    assert sorted(copy.kind.split()[1] for copy in copies()) == sorted(DTYPES)


def test_what_other_dtypes_take_of_a_copy_is_foreseen(tmp_path, folder):
    """At most twice as much: bfloat16 and float16 have routers and tables in half the bytes of float32."""
    for name, kinds in (("mixtral-wide", [KIND.Q4_K]), ("llama-wide", [KIND.Q8_0]), ("llama-wide-tied", [KIND.Q6_K])):
        path = write_codes(tmp_path / f"{name}.gguf", name, kinds)
        for dtype in DTYPES:
            shutil.rmtree(folder, ignore_errors=True)
            own = load(path, dtype=dtype).memory["weights_bytes"]
            (copy,) = copies()
            resolved = resolve_checkpoint(open_checkpoint(path), EngineConfig(dtype=dtype))
            taken = read_header(copy.path)[0]["payload_bytes"] - own
            assert 0 < taken <= resolved.copy_bytes - resolved.weight_bytes <= 2 * taken


def test_numbers_that_float16_does_not_hold(tmp_path, folder, opened):
    """The copy serves in the others, and says of this dtype what the model says, as often as it is asked for."""
    arrays = converted("llama", *tiny("llama"))
    norm = arrays["blk.1.ffn_norm.weight"].copy()
    norm[3] = 7e4
    path = write(tmp_path / "x.gguf", "llama", KIND.Q4_0, stored={"blk.1.ffn_norm.weight": (norm, KIND.F32)})
    with pytest.raises(CheckpointError) as wanted:
        load(path, dtype="float16")
    assert there(folder) == []
    want = load(path, dtype="float32", packed_cache=False).logits(LONG)
    load(path, dtype="bfloat16")
    opened.clear()
    for _ in range(2):
        with pytest.raises(CheckpointError) as raised:
            load(path, dtype="float16")
        assert str(raised.value) == str(wanted.value)
        assert str(path) in str(raised.value) and "holds 70000, and float16 holds numbers up to" in str(raised.value)
    assert torch.equal(load(path, dtype="float32").logits(LONG), want)
    assert opened == ["copy"] * 3 and len(there(folder)) == 1


@pytest.mark.parametrize(
    ("last", "places"),
    [("float32", [0]), ("bfloat16", [0, 1, 2]), pytest.param("float32", [1, 2], marks=pytest.mark.long)],
)
def test_a_damaged_copy_is_made_again_for_all(last, places, model, folder, opened, caplog):
    """Wherever it is damaged: in codes, or in what is there for another dtype."""
    want = {dtype: load(model, dtype=dtype, packed_cache=False).logits(LONG) for dtype in DTYPES}
    load(model, dtype="float32")
    (path,) = folder.glob("*.packed")
    data = path.read_bytes()
    found = (BEGIN, BEGIN + read_header(path)[0]["payload_bytes"] - 70, len(data) - 1)
    for at in [found[place] for place in places]:
        damaged = bytearray(data)
        damaged[at] ^= 1
        replace(path, damaged)
        opened.clear()
        caplog.clear()
        for dtype in (last, *DTYPES):
            assert torch.equal(load(model, dtype=dtype).logits(LONG), want[dtype])
        assert opened[-4:] == ["model"] + 3 * ["copy"] and len(there(folder)) == 1
        assert caplog.text.count("another copy is made") == 1


def test_a_dtype_that_a_copy_does_not_tell_is_damage(model, folder, opened, caplog, monkeypatch):
    real = weights.Packing.describe

    def without_float16(packing, others=()):
        found = real(packing, others)
        del found["dtypes"]["float16"]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(weights.Packing, "describe", without_float16)
        load(model, dtype="float32")
    want = load(model, dtype="float16", packed_cache=False).logits(LONG)
    for _ in range(2):
        assert torch.equal(load(model, dtype="float16").logits(LONG), want)
    assert caplog.text.count("its description of the weights cannot be read") == 1 and len(there(folder)) == 1


def test_a_model_that_changes_while_it_is_read_again(model, folder, opened, monkeypatch):
    """What is read in other dtypes is never of another model than the codes: then no copy is kept."""
    real = packed_copy.other_dtypes

    def changed(*given):
        data = bytearray(model.read_bytes())
        data[-1] ^= 1
        model.write_bytes(data)
        yield from real(*given)

    monkeypatch.setattr(packed_copy, "other_dtypes", changed)
    load(model, dtype="float32")
    assert there(folder) == [] and halves(folder) == []


def test_a_model_that_is_gone_before_it_is_read_again(model, folder, caplog, monkeypatch):
    real = packed_copy.other_dtypes

    def gone(*given):
        model.unlink()
        yield from real(*given)

    want = load(model, dtype="float32", packed_cache=False).logits(LONG)
    monkeypatch.setattr(packed_copy, "other_dtypes", gone)
    assert torch.equal(load(model, dtype="float32").logits(LONG), want)
    assert there(folder) == [] and halves(folder) == []
    assert caplog.text.count("will not start faster") == 1


@pytest.mark.slow
def test_two_processes_that_load_in_two_dtypes_leave_one_copy(model, folder):
    """Each has written one of its own before; the one that ends last takes the place of the other."""
    want = load(model, dtype="float32", packed_cache=False).generate([[1, 2, 3]], max_new_tokens=8, ignore_eos=True)
    with start_writing(model, "pause", "float32") as writer:
        assert writer.stdout.readline() == "writing\n"
        logits = load(model, dtype="bfloat16").logits(LONG)
        first = there(folder)
        assert len(first) == 1 and len(halves(folder)) == 1
        said, warned = writer.communicate("go on\n")
    assert (said.strip(), warned) == (want[0].hash, "")
    assert there(folder) == first and halves(folder) == []
    assert torch.equal(load(model, dtype="bfloat16").logits(LONG), logits)
    locks = [path.name for path in folder.glob(".*.lock")]
    assert not [name for name in locks if "-float32-" in name or "-bfloat16-" in name], "of names that no copy has"


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.long), 3])
def test_ranks_read_what_is_there_for_their_dtype(count, model, folder, opened, monkeypatch):
    monkeypatch.setattr(ranks, "OtherRanks", RanksInThreads)
    want = {dtype: load(model, dtype=dtype, packed_cache=False).logits(LONG) for dtype in DTYPES}
    load(model, dtype="bfloat16")
    opened.clear()
    for dtype in DTYPES:
        with closing(load(model, dtype=dtype, tensor_parallel=count, threads=1)) as engine:
            assert torch.equal(engine.logits(LONG), want[dtype])
    assert set(opened) == {"copy"} and len(there(folder)) == 1


def test_a_copy_that_is_given_as_a_model_serves_in_any_dtype(model, folder, tmp_path):
    want = {dtype: load(model, dtype=dtype).logits(LONG) for dtype in DTYPES}
    (copy,) = folder.glob("*.packed")
    path = shutil.copyfile(copy, tmp_path / "mine.packed")
    for dtype in DTYPES:
        assert torch.equal(load(path, dtype=dtype).logits(LONG), want[dtype])
    assert load(path).config.dtype == load(model).config.dtype
    with pytest.raises(ConfigError, match=r"scheme = 'q4' is not allowed: file: .* is packed for that"):
        load(path, scheme="q4")


def test_a_packed_model_that_somebody_asked_for_is_for_one_dtype(model, tmp_path):
    path = tmp_path / "x.packed"
    save_packed_model(open_checkpoint(model), EngineConfig(dtype="bfloat16"), path, lambda *_: None)
    facts = read_header(path)[0]
    assert facts["dtype"] == "bfloat16" != ANY_DTYPE and list(facts["weights"]["dtypes"]) == ["bfloat16"]
    with pytest.raises(ConfigError, match=r"dtype = 'float32' is not allowed: bfloat16: .* is packed for that"):
        load(path, dtype="float32")
