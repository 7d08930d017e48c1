"""Cache formats: their facts are true, and a new one is two classes, of facts and of layers, and a line for each."""

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_models import CONTEXT, prompt, save
from tokenmill.cache.formats import find_format
from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec, RowsSpec
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.kernels import native_structs
from tokenmill.program.native.layouts import KV_FIELDS, kv_number
from tokenmill.registry import FORMATS, Entry
from tokenmill.settings.engine_config import DTYPES

CPU = torch.device("cpu")
START = prompt(40, seed=3)


class Range8:
    """A format of this test: each token and head in 8 bits between its smallest and its largest entry."""

    @staticmethod
    def row_bytes(num_kv_heads, head_dim, dtype):
        return num_kv_heads * (head_dim + 8)


class Range8Layer:
    """Its layers."""

    kinds = ("k", "v", "k_steps", "v_steps", "k_lows", "v_lows")

    def __init__(self, num_slots, rows, dtype, zeros):
        self.dtype, shape = getattr(torch, dtype), (num_slots, rows.num_kv_heads, rows.head_dim)
        codes = [zeros(shape, torch.uint8) for _ in "kv"]
        self.tensors = (*codes, *(zeros(shape[:2], torch.float32) for _ in range(4)))

    def write(self, slots_T, *kv):
        for rows_TKH, codes, steps, lows in zip(kv, self.tensors[:2], self.tensors[2:4], self.tensors[4:], strict=True):
            low_TK, high_TK = rows_TKH.float().amin(-1), rows_TKH.float().amax(-1)
            step_TK = ((high_TK - low_TK) / 255).clamp_min(1e-12)
            codes_TKH = torch.round((rows_TKH.float() - low_TK[..., None]) / step_TK[..., None]).to(torch.uint8)
            for tensor, values in ((codes, codes_TKH), (steps, step_TK), (lows, low_TK)):
                tensor.index_copy_(0, slots_T, values)

    def gather(self, slots):
        codes, steps, lows = self.tensors[:2], self.tensors[2:4], self.tensors[4:]
        k, v = (
            (c[slots].float() * s[slots][..., None] + low[slots][..., None]).to(self.dtype)
            for c, s, low in zip(codes, steps, lows, strict=True)
        )
        return k, v


@pytest.fixture
def range8(monkeypatch):
    monkeypatch.setitem(FORMATS, "range8", Entry("", f"{__name__}:Range8", f"{__name__}:Range8Layer"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_the_facts_of_a_format_are_true(name, dtype):
    """Of layers with K and V, of one whose K is its V, which takes half, and of one whose V is narrower."""
    spec = CacheSpec(
        (RowsSpec(3, 16), RowsSpec(3, 16, is_latent=True), RowsSpec(3, 16, value_dim=10)), dtype, name, 4, 5
    )
    pool, row_bytes = Pool(spec, CPU), find_format(name).row_bytes
    assert pool.num_bytes == spec.num_bytes
    assert spec.bytes_per_token == 4 * row_bytes(3, 16, dtype) + row_bytes(3, 10, dtype)
    layer, latent, narrow = pool.layers
    for each, kinds in ((layer, ("k", "v")), (latent, ("k",)), (narrow, ("k", "v"))):
        assert len(each.kinds) == len(set(each.kinds)) == len(each.tensors)
        assert [kind for kind in each.kinds if len(kind) == 1] == list(kinds)
        if kv_number(name, dtype) is not None:
            fields = [KV_FIELDS[kind] for kind in each.kinds]
            assert len(set(fields)) == len(each.tensors)
            assert set(fields) <= {field for field, _ in native_structs.TmOp._fields_}
    names = {f"{number}.{kind}" for number, each in enumerate(pool.layers) for kind in each.kinds}
    assert set(pool.read(torch.tensor([0]))) == names
    rows = torch.randn(2, 3, 16).to(latent.dtype)
    latent.write(torch.tensor([4, 7]), rows, torch.full_like(rows, 9.0))
    k, v = latent.gather(torch.tensor([4, 7]))
    assert torch.equal(k, v)
    torch.testing.assert_close(k, rows, rtol=0.02, atol=0.02)
    narrow.write(torch.tensor([4, 7]), rows, rows[..., 3:13])
    _, v = narrow.gather(torch.tensor([4, 7]))
    torch.testing.assert_close(v, rows[..., 3:13], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("how", [{}, {"block_size": 3}, {"program": "compiled", "compile": "no"}])
def test_a_new_format_is_its_facts_and_its_layers(how, range8, tmp_path):
    path = save("llama", tmp_path)
    settings = {"dtype": "float32", "max_length": CONTEXT, "program": "eager", **how}
    ours, plain = load(path, cache_format="range8", **settings), load(path, **settings)
    assert ours.memory["cache_bytes"] * 4 * 8 == plain.memory["cache_bytes"] * (8 + 8)  # bytes of a head
    assert torch.corrcoef(torch.stack([ours.logits(START).flatten(), plain.logits(START).flatten()]))[0, 1] > 0.999
    wanted = ours.generate(START, max_new_tokens=12, ignore_eos=True).tokens
    with ours.session(START) as session:
        begun = session.generate(max_new_tokens=5, ignore_eos=True).tokens
        session.save(tmp_path / "x.kv")
    with load(path, cache_format="range8", **settings).open_session(tmp_path / "x.kv") as session:
        assert begun + session.generate(max_new_tokens=7, ignore_eos=True).tokens == wanted


@needs_native
def test_the_native_program_refuses_a_format_that_it_cannot_read(range8, tmp_path):
    path = save("llama", tmp_path)
    with pytest.raises(ConfigError, match="native: cannot read cache format range8"):
        load(path, program="native", cache_format="range8")
    assert load(path, cache_format="range8").program_name == "eager"
