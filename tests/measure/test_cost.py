"""The planner's arithmetic against what is really allocated."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

import tokenmill
from tests.tiny_models import CONTEXT, TINY, save
from tokenmill.bench.shapes import find_shape
from tokenmill.errors import ConfigError
from tokenmill.loader.resolve import resolve
from tokenmill.measure.cost import (
    Cost,
    Storage,
    Traffic,
    cost_of,
    costs_of_ranks,
    decode_traffic,
    head_share,
    kv_bytes,
    prefill_traffic,
)
from tokenmill.memory.available import available_bytes
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.counts import count_parameters
from tokenmill.model.families import read_config
from tokenmill.program.spec import preferred_schemes
from tokenmill.registry import PROGRAMS, lookup
from tokenmill.settings.engine_config import DTYPES, EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

FORMS = [(name, scheme) for name in PROGRAMS for scheme in preferred_schemes(lookup(PROGRAMS, name, "program"))]
SMOLLM2 = ModelConfig(
    family="llama",
    vocab_size=49152,
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    max_position_embeddings=8192,
    rope=Rope(dim=64, theta=100000.0),
    tie_embeddings=True,
)


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_of_the_file_is_counted(name, models):
    """All tensors of a saved model are parameters, but for Apertus's constants; a tied head's copy is not saved."""
    checkpoint = open_checkpoint(save(name, models))
    counted = sum(count_parameters(read_config(checkpoint.config)).values())
    sizes = {name: torch.Size(shape).numel() for name, shape in checkpoint.shapes.items()}
    assert counted == sum(size for name, size in sizes.items() if not name.endswith((".beta", ".eps")))


MODELS = ["llama-mha-tied", "gpt2", "gpt_neox", "qwen3", "mixtral", "gemma4_text-plain", "falcon_h1"]
ALLOCATED = [
    # float16 has as many bytes as bfloat16: by default it is counted in one model
    pytest.param(name, *form, dtype, marks=pytest.mark.long if dtype == "float16" and name != MODELS[0] else ())
    for name, form, dtype in product(MODELS, FORMS, DTYPES)
]


@pytest.mark.parametrize(("name", "program", "scheme", "dtype"), ALLOCATED)
def test_predicted_bytes_are_the_allocated_ones(name, program, scheme, dtype, models):
    sizes = {"dtype": dtype, "max_sequences": 3, "block_size": 16, "max_length": CONTEXT // 2}
    try:
        engine = tokenmill.load(save(name, models), program=program, scheme=scheme, **sizes)
    except ConfigError as refusal:
        pytest.skip(str(refusal))
    predicted = cost_of(engine.core.loaded.resolved)
    assert predicted.weights_bytes == engine.memory["weights_bytes"]
    assert predicted.cache_bytes == engine.memory["cache_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["native", "eager"])
def test_codes_of_a_file_are_predicted_within_a_twentieth(program, real_model):
    engine = tokenmill.load(real_model, program=program, scheme="file", max_length=256)
    predicted = cost_of(engine.core.loaded.resolved)
    assert predicted.weights_bytes == pytest.approx(engine.memory["weights_bytes"], rel=0.05)


def test_latent_attention_keeps_one_row_of_a_token_in_each_layer():
    """GLM-4.7-Flash: 512 numbers of the latent vector and 64 rotated ones, for 20 heads of keys and values."""
    model = read_config(find_shape("glm-4.7-flash").config)
    assert kv_bytes(model, "bfloat16") == 47 * (512 + 64) * 2
    assert kv_bytes(model, "bfloat16", "int8") == 47 * (512 + 64 + 4)


def test_known_figures():
    """SmolLM2-135M's model card says 135 M; 2 · layers · kv heads · head dim · 2 bytes by hand."""
    assert sum(count_parameters(SMOLLM2).values()) == 134_515_008
    assert kv_bytes(SMOLLM2, "bfloat16") == 2 * 30 * 3 * 64 * 2


def test_the_share_of_the_head():
    """SmolLM2-135M has 134.5 million parameters, and a tied head of 49,152 rows of 576."""
    config = read_config(find_shape("smollm2-135m").config)
    assert round(head_share(config), 4) == round(49_152 * 576 / 134_515_008, 4) == 0.2105


def test_a_token_costs_the_same_whatever_the_block_size():
    for block_size in (1, 16, 2048):
        resolved = resolve(EngineConfig(block_size=block_size), SMOLLM2)
        spec = resolved.cache
        assert spec.bytes_per_token == kv_bytes(SMOLLM2, resolved.config.dtype)
        assert spec.num_bytes == spec.bytes_per_token * 2048


def test_workspace_grows_with_what_a_step_holds():
    small, large = (cost_of(resolve(EngineConfig(max_step_tokens=tokens), SMOLLM2)) for tokens in (64, 512))
    assert small.workspace_bytes < large.workspace_bytes


def test_what_fits_is_what_is_left_after_the_weights():
    need = Cost(weights_bytes=1000, cache_bytes=0, workspace_bytes=100, bytes_per_token=7)
    assert need.tokens_within(1100 + 7 * 5 + 6) == 5
    assert need.tokens_within(500) == 0


def test_available_memory_is_some_of_the_machines():
    assert 0 < available_bytes() <= 1 << 50


SMALL = ModelConfig("llama", 100, 8, 2, 2, 1, 4, 16, 64, rope=Rope(4, 1e4), windows=(None, 3))
# Of a layer: q, k, v and out, the MLP; twice that, three norms of 8 and two more, and the head.
READ = 2 * ((8 + 4 + 4) * 8 + 8 * 8 + 3 * 8 * 16) + 5 * 8 + 100 * 8
ROW = 2 * 2 * 1 * 4 * 4  # K and V of 2 layers, a head of 4 numbers of 4 bytes
PLAIN = Storage("float32", 4.0, cache_format="dense")


def attention(seen):
    """A product and an addition, with K and with V, for 2 heads of 4."""
    return 4 * 8 * seen


@pytest.mark.parametrize(("batch", "depth", "seen"), [(1, 0, 0), (1, 2, 4), (3, 10, 13)])
def test_the_traffic_of_decoding(batch, depth, seen):
    """A window of 3 cuts what the second layer sees; seen: by both layers together."""
    found = decode_traffic(SMALL, PLAIN, batch, depth)
    assert found.read_bytes == READ * 4 + batch * seen / 2 * ROW
    assert found.operations == batch * (2 * READ + attention(seen))


def test_the_traffic_without_a_cache_is_that_of_a_prefill():
    assert decode_traffic(SMALL, PLAIN, 2, 6, cache=False) == prefill_traffic(SMALL, PLAIN, 2, 7)


@pytest.mark.parametrize(
    ("batch", "num_tokens", "depth", "seen"), [(1, 4, 0, 2 + 2), (2, 10, 0, 5 + 3), (2, 10, 20, 25 + 3), (1, 1, 0, 1)]
)
def test_the_traffic_of_prefill(batch, num_tokens, depth, seen):
    """A token sees half of the new ones on average, and those before as far as windows let it; the last has logits."""
    found = prefill_traffic(SMALL, PLAIN, batch, num_tokens, depth)
    assert found.read_bytes == READ * 4 + batch * (depth + min(depth, 3)) / 2 * ROW
    assert found.operations == batch * (num_tokens * (2 * (READ - 800) + attention(seen)) + 2 * 800)


def test_two_tokens_choose_the_same_of_four_experts_now_and_then():
    moe = replace(SMALL, num_experts=4, num_experts_per_token=1)
    one, two = (prefill_traffic(moe, PLAIN, batch, 0.2).read_bytes for batch in (1, 2))
    assert two - one == 2 * 3 / 4 * 3 * 8 * 16 * 4


def test_of_experts_a_token_computes_those_that_it_chose():
    moe = replace(SMALL, num_experts=4, num_experts_per_token=1)
    each = READ - 2 * 3 * 8 * 16 + 2 * (3 * 8 * 16 + 4 * 8)  # of a layer one expert, and the router
    assert decode_traffic(moe, PLAIN, 3, 0).operations == 3 * 2 * each
    assert prefill_traffic(moe, PLAIN, 1, 4).operations == 4 * (2 * (each - 800) + attention(4)) + 2 * 800


def test_how_an_engine_stores_its_matrices():
    """All of them, and those of all experts."""
    moe = replace(SMALL, num_experts=4, num_experts_per_token=1)
    for scheme, integer in (("dense", False), ("q8", True)):
        config = SimpleNamespace(scheme=scheme, dtype="bfloat16", cache_format="int8")
        engine = SimpleNamespace(model_config=moe, config=config, memory={"matrix_bytes": 30000})
        weights = READ - 2 * 3 * 8 * 16 + 2 * (4 * 3 * 8 * 16 + 4 * 8)
        assert Storage.of_engine(engine) == Storage("bfloat16", 30000 / weights, integer, "int8")


@pytest.mark.parametrize(
    ("is_integer", "bits", "expected"),
    [
        (False, None, Storage("bfloat16", 2, False, "int8")),
        (True, 4.5, Storage("bfloat16", 0.5625, True, "int8")),
        (True, None, Storage("bfloat16", 3.0, True, "int8")),  # what the file takes for each of its parameters
    ],
)
def test_how_an_engine_will_store_its_matrices(is_integer, bits, expected):
    config = SimpleNamespace(dtype="bfloat16", cache_format="int8")
    scheme = SimpleNamespace(is_integer=is_integer, bits_per_weight=bits)
    resolved = SimpleNamespace(config=config, scheme=scheme, model=SMALL)
    assert Storage.planned(resolved, 3 * sum(count_parameters(SMALL).values())) == expected


def test_the_floor_is_the_larger_of_both():
    assert Traffic(100, 10).floor_s(10, 10) == 10 and Traffic(10, 100).floor_s(10, 5) == 20


def test_how_plain_values_are_stored():
    assert Storage.plain("bfloat16") == Storage("bfloat16", 2, False, EngineConfig.cache_format)
    assert Storage.plain("float32", "int8") == Storage("float32", 4, False, "int8")
    assert Storage("float32", 1.0).integer is False


def test_the_sum_of_a_cost():
    cost = Cost(weights_bytes=1000, cache_bytes=200, workspace_bytes=30, bytes_per_token=7)
    assert cost.total_bytes == 1230
    assert replace(cost, bytes_per_token=1).tokens_within(1029) == 0
    assert [cost.tokens_within(size) for size in (1029, 1030, 1036, 1037)] == [0, 0, 0, 1]


@pytest.mark.parametrize(("cache_format", "row"), [("dense", 4 * 4), ("int8", 4 + 4)])
def test_the_rows_of_a_token(cache_format, row):
    assert kv_bytes(SMALL, "float32", cache_format) == 2 * 2 * row


def workspace(config, model):
    return cost_of(resolve(config, model)).workspace_bytes


def test_the_workspace_by_hand():
    """8 wide; q, k, v twice and out 40, the MLP 64; 4 bytes each, norms and logits in float32 beside."""
    config = EngineConfig(
        dtype="float32", program="eager", scheme="dense", max_length=20, max_step_tokens=6, max_sequences=1
    )
    rotary = 2 * 20 * 4 * 4
    assert workspace(config, SMALL) == 6 * ((16 + 64) * 4 + 16 * 4) + 100 * 12 + rotary
    plain = replace(SMALL, gated_mlp=False, intermediate_size=10)
    assert workspace(config, plain) == 6 * ((16 + 40) * 4 + 16 * 4) + 100 * 12 + rotary
    shared = replace(SMALL, num_experts=2, num_experts_per_token=1, shared_expert_size=20)
    assert workspace(config, shared) == 6 * ((16 + 80) * 4 + 16 * 4) + 100 * 12 + rotary
    assert workspace(replace(config, max_step_tokens=500, max_sequences=2), SMALL) == (
        2 * 20 * ((16 + 64) * 4 + 16 * 4) + 2 * 100 * 12 + rotary
    )
    learned = replace(SMALL, rope=None, positions="learned")
    assert workspace(config, learned) == workspace(config, SMALL) - rotary


def test_what_ranks_need_together_is_what_the_plan_counts():
    """Norms are on every rank; of program native rank 0 has the embedding, and all map one cache."""
    for program, is_shared in (("eager", False), ("native", True)):
        given = EngineConfig(
            program=program, tensor_parallel=3, dtype="float32", scheme="dense" if is_shared else "packed"
        )
        resolved = resolve(given, SMOLLM2)
        ranks, one = costs_of_ranks(resolved), cost_of(resolve(replace(given, tensor_parallel=1), SMOLLM2))
        assert cost_of(resolved) == Cost.together(ranks)
        assert sum(rank.cache_bytes for rank in ranks) == one.cache_bytes
        assert [rank.cache_bytes > 0 for rank in ranks] == [True, not is_shared, not is_shared]
        norms = count_parameters(SMOLLM2)["norms"] * 4
        assert sum(rank.weights_bytes for rank in ranks) == one.weights_bytes + 2 * norms
