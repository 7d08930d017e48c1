"""Program native in several ranks: the bits of one rank, whatever the model, its numbers and their division."""

from contextlib import closing
from functools import cache

import pytest
import torch

from tests import gguf_files
from tests.calibrate.runs import calibrated
from tests.marks import QUICK_FAMILIES, covering
from tests.parallel.ranks_in_threads import RanksInThreads
from tests.parallel.test_eager_ranks import SCARCE, texts
from tests.tiny_models import HYBRIDS, KINDS, RARE, TINY, UNLIKE, prompt, save
from tests.unequal_model import save_unequal
from tokenmill import EngineConfig, load
from tokenmill.bench.golden import check_text, reference_for
from tokenmill.kernels import native_library
from tokenmill.loader import ranks
from tokenmill.loader.pack import save_packed_model
from tokenmill.weights.checkpoint import open_checkpoint

LONG = prompt(97, seed=5)
FORMS = ["float32 dense", "bfloat16 dense", "float16 dense", "float32 q8", "bfloat16 q4"]
FEW = [*KINDS, *UNLIKE, *HYBRIDS, *RARE]
REST = [name for name in TINY if name not in FEW]
PLAIN = ["llama", "gpt2", "qwen3", "mixtral"]
HOWS = {
    "threads": {"tensor_parallel": 2, "threads": 2},
    "five ranks": {"tensor_parallel": 5},
    "chunks and blocks": {"tensor_parallel": 2, "block_size": 3, "max_step_tokens": 20},
    "single tokens": {"tensor_parallel": 3, "max_step_tokens": 1},
    "int8 rows": {"tensor_parallel": 2, "cache_format": "int8"},
}

pytestmark = pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}")


@pytest.fixture(autouse=True)
def in_threads(monkeypatch):
    monkeypatch.setattr(ranks, "OtherRanks", RanksInThreads)


def native(path, dtype="float32", **settings):
    return load(path, program="native", dtype=dtype, **{"threads": 1, **settings})


def same_bits(path, tokens=LONG, counts=(2, 3), **settings):
    """Whether ranks give the logits of one process."""
    with closing(native(path, **settings)) as one:
        whole = one.logits(tokens)
    for count in counts:
        with closing(native(path, tensor_parallel=count, **settings)) as ranks:
            assert torch.equal(ranks.logits(tokens), whole), count
            assert torch.equal(ranks.logits(tokens[:7]), whole[:7]), count


@pytest.mark.parametrize(("family", "form"), covering(FEW, FORMS, QUICK_FAMILIES, rest=REST))
def test_the_same_bits_with_any_number_of_ranks(family, form, models):
    path, (dtype, scheme) = save(family, models), form.split()
    same_bits(path, dtype=dtype, scheme=scheme)


@pytest.mark.parametrize(
    ("family", "speculate"), covering([*HYBRIDS, *RARE], ["off", "suffix", "multi_step"], whole=["qwen3_5_text"])
)
def test_texts_and_stored_states_are_those_of_one_process(family, speculate, models, tmp_path):
    found, files = [], []
    for count in (1, 2, 3):
        folder = tmp_path / f"blocks of {count}"
        settings = {"prefix_dir": str(folder), "speculate": speculate, "tensor_parallel": count}
        with closing(native(save(family, models), **SCARCE, **settings)) as engine:
            found.append(texts(engine, tmp_path / f"{count}.kv"))
        files.append({file.name: file.read_bytes() for file in folder.rglob("*.kv")})
    assert found[1] == found[0] and found[2] == found[0]
    assert files[0] and files[1] == files[0] and files[2] == files[0]
    with closing(native(save(family, models), **SCARCE, **settings | {"tensor_parallel": 2})) as engine:
        assert texts(engine, tmp_path / "again.kv") == found[0]  # with what three ranks have stored


@cache
def of_one_process(path, cache_format):
    """Computed once for all divisions."""
    with closing(native(path, cache_format=cache_format)) as one:
        return one.logits(LONG)


@pytest.mark.parametrize(
    ("family", "settings"),
    covering([*PLAIN, *HYBRIDS, *RARE], list(HOWS.values()), ["llama", "qwen3_5_text"], ids=list(HOWS)),
)
def test_the_same_bits_for_any_chunk_thread_and_block(family, settings, models):
    path = save(family, models)
    with closing(native(path, **settings)) as ranks:
        assert torch.equal(ranks.logits(LONG), of_one_process(path, settings.get("cache_format", "dense")))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("Q6_K", "Q5_K", "IQ4_XS"), ("F16", "Q3_K", "Q5_0", "MXFP4", "Q8_0", "IQ4_NL")])
@pytest.mark.parametrize("name", gguf_files.WIDE)
def test_codes_of_several_kinds(name, kinds, tmp_path):
    path = gguf_files.write_codes(tmp_path / "x.gguf", name, [gguf_files.KIND[kind] for kind in kinds])
    same_bits(path, dtype="auto")


@pytest.mark.slow
def test_matrices_of_4_and_of_8_bits(llama, tmp_path):
    calibrated(llama, tmp_path / "mixed", algorithm="importance", target_bits=7.0)
    same_bits(tmp_path / "mixed")


def test_layers_that_differ(tmp_path, monkeypatch):
    same_bits(save_unequal(tmp_path / "unequal", monkeypatch))


@pytest.mark.parametrize("scheme", ["dense", "q8"])
def test_one_packed_model_serves_every_division(scheme, llama, tmp_path):
    config = EngineConfig(program="native", dtype="float32", scheme=scheme)
    save_packed_model(open_checkpoint(llama), config, tmp_path / "x.packed", lambda done, total: None)
    same_bits(tmp_path / "x.packed", counts=(2, 3, 4))
    with closing(native(llama, scheme=scheme)) as one, closing(native(tmp_path / "x.packed", tensor_parallel=2)) as two:
        assert torch.equal(one.logits(LONG), two.logits(LONG))


def test_more_ranks_than_a_matrix_has_units(llama):
    """Some of them have no unit of some matrices."""
    same_bits(llama, counts=(9,))


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("settings", [{"dtype": "auto"}, {"dtype": "bfloat16", "scheme": "dense"}])
def test_the_golden_texts(settings, real_model):
    """With its own codes, which round activations, some tokens differ from transformers': the same ones."""
    with closing(native(real_model, tensor_parallel=2, **settings)) as engine:
        said = check_text(engine, reference_for(real_model))
    assert said.startswith("8 texts" if "scheme" in settings else "253 of 256 tokens")
