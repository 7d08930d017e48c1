"""A divided decoder computes the bits of a whole one: on every rank, for two and three ranks, with uneven heads."""

import pytest
import torch

from tests import gguf_files
from tests.calibrate.runs import calibrated
from tests.marks import covering
from tests.parallel.eager_in_threads import Threads, save_with_three_kv_heads
from tests.tiny_models import DIVISIBLE, HYBRIDS, KINDS, TINY, UNLIKE, VOCABULARY, build, prompt, save
from tokenmill.cache.spec import kv_bytes_per_token
from tokenmill.errors import ConfigError
from tokenmill.loader.load_model import resolve_checkpoint
from tokenmill.program.torch_specs import EagerSpec
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

PROMPTS = [prompt(30, seed=1), prompt(11, seed=2), prompt(19, seed=3)]
# So large that shares of its matrices are products which torch computes as it does the whole ones.
LARGE = TINY["llama"][1] | {
    "hidden_size": 192,
    "intermediate_size": 304,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
}
SETTINGS = {
    "bfloat16": {"dtype": "bfloat16"},
    "dense": {"scheme": "dense"},
    "dense in bfloat16": {"scheme": "dense", "dtype": "bfloat16"},
    "q8": {"scheme": "q8"},
    "q4 in bfloat16": {"scheme": "q4", "dtype": "bfloat16"},
    "int8 rows": {"cache_format": "int8"},
    "blocks": {"block_size": 8, "cache_tokens": 400},
}
GEMMAS = ("gemma3n_text", "gemma4_text")
MORE_GROUPS = [(1, (2, 3, 4)), (6, (2, 3))]


def check(path, sizes=(2, 3), **settings):
    settings = {"max_sequences": 3, **settings}
    whole = Threads(path, 1, **settings).logits(*PROMPTS)[0]
    for size in sizes:
        for rank, logits in enumerate(Threads(path, size, **settings).logits(*PROMPTS)):
            assert torch.equal(logits, whole), f"rank {rank} of {size}: {(logits - whole).abs().max()}"


@pytest.fixture(scope="module")
def large(models):
    build("llama", LARGE).save_pretrained(path := models / "large")
    return path


def test_a_divided_llama(models):
    check(save_with_three_kv_heads("llama", models))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name != "llama"])
def test_every_kind_of_arithmetic(name, models):
    check(save_with_three_kv_heads(name, models))


@pytest.mark.parametrize("name", ["olmo-clipped", *UNLIKE])
def test_what_few_families_have(name, models):
    """Products within bounds; gates of a matrix of their own; values of another width than keys, multiplied."""
    check(save(name, models), sizes=(2,))


def save_divisible(name, folder):
    """A tiny model of that name; full layers of Gemma 4 have as many kv heads as two ranks need."""
    path = folder / f"{name}-divisible"
    if not path.exists():
        kind, numbers = TINY[name]
        more = {"num_global_key_value_heads": 2} if kind.startswith("gemma4") else {}
        build(kind, numbers | more).save_pretrained(path)
    return path


@pytest.mark.parametrize("name", [*GEMMAS, "gemma3n_text-departures", "gemma4_text-small"])
def test_streams_inputs_of_layers_and_rows_that_layers_share(name, models):
    """And heads of two sizes, values that are keys, experts beside an MLP."""
    check(save_divisible(name, models), sizes=(2,))


def test_the_table_of_inputs_of_layers_is_divided_where_it_is_in_memory(models):
    """Each rank looks up tokens of its own rows, and tokens behind the end of the table."""
    path = save("gemma3n_text-departures", models)
    check(path, sizes=(2,), dtype="float16", scheme="dense")
    tables = [runner.program.decoder.per_layer.embedding for runner in Threads(path, 2, dtype="float16").runners]
    assert [len(table.rows) for table in tables] == [96, VOCABULARY - 20 - 96]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", [pytest.param(GEMMAS[0], marks=pytest.mark.slow), GEMMAS[1]])
def test_unequal_layers_with_every_kind_of_storage(name, settings, models):
    check(save_divisible(name, models), sizes=(2,), **settings)


@pytest.mark.parametrize("name", [*HYBRIDS, "mamba2"])
def test_layers_that_keep_states(name, models):
    check(save(name, models), sizes=(2,))


def test_the_heads_of_one_group_on_several_ranks(models):
    """Each of them has the B and C of the group; its norm takes the heads of all."""
    check(save("mamba2", models), sizes=(3, 5))


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [(2, (2, 4)), (3, (2, 3)), (6, (4,)), *(pytest.param(*more, marks=pytest.mark.long) for more in MORE_GROUPS)],
)
def test_any_groups_of_mamba_2(groups, sizes, models):
    """A rank has a group, several, or a share of one; or two ranks have shares of a third between them."""
    path = models / f"{groups} groups"
    build("mamba2", TINY["mamba2"][1] | {"num_heads": 12, "head_dim": 8, "n_groups": groups}).save_pretrained(path)
    check(path, sizes=sizes)


@pytest.mark.parametrize(
    ("name", "settings"), covering(HYBRIDS, list(SETTINGS.values()), ids=list(SETTINGS), marks=pytest.mark.slow)
)
def test_states_with_every_kind_of_storage(name, settings, models):
    check(save(name, models), sizes=(2,), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_kind_of_storage(settings, large):
    check(large, **settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    covering(
        [
            *"gpt2 gpt_oss cohere2 glm4_moe qwen2_moe llama-mha-tied olmo2-bias bamba-departures".split(),
            *("laguna", "mimo_v2_flash-departures", "gemma3n_text", "gemma4_text-small", *HYBRIDS),
        ],
        [{}, {"scheme": "dense"}, {"scheme": "q8", "dtype": "bfloat16"}],
        ["llama-mha-tied", "gpt_oss"],
        ids=["as it is", "dense", "q8 in bfloat16"],
        marks=pytest.mark.slow,
    ),
)
def test_the_bytes_of_each_rank_are_foreseen(name, settings, models):
    ranks = Threads(save(name, models), 2, **settings)
    resolved = ranks.resolved
    foreseen = EagerSpec.rank_weight_bytes(resolved.model, resolved.config.dtype, resolved.scheme, 2)
    assert [runner.program.num_weight_bytes for runner in ranks.runners] == foreseen
    pools = [runner.pool.num_bytes for runner in ranks.runners]
    caches = EagerSpec.rank_caches(resolved.cache, resolved.model, 2)
    latent = [rows for rows in resolved.cache.rows if rows.is_latent]  # which every rank has
    twice = kv_bytes_per_token(latent, resolved.cache.dtype, resolved.cache.format) * resolved.cache.num_slots
    assert pools == [cache.num_bytes for cache in caches] and sum(pools) == resolved.cache.num_bytes + twice


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"scheme": "q8"}], ids=["float32", "bfloat16", "q8"])
@pytest.mark.parametrize("name", [name for name in DIVISIBLE if name not in ("llama-mqa", "gpt_bigcode")])
def test_every_family(name, settings, models):
    check(save(name, models), sizes=(2,), **settings)


def test_a_rank_has_its_share_alone(large):
    whole, ranks = Threads(large, 1), Threads(large, 3)
    (total,) = (runner.program.num_weight_bytes for runner in whole.runners)
    shares = [runner.program.num_weight_bytes for runner in ranks.runners]
    assert max(shares) < 0.4 * total
    # Twice, only the norms: a whole decoder is what ranks have together.
    norms = 5 * LARGE["hidden_size"] * 4
    assert sum(shares) == total + 2 * norms
    foreseen = EagerSpec.rank_weight_bytes(ranks.resolved.model, "float32", ranks.resolved.scheme, 3)
    assert shares == foreseen
    cached = [runner.pool.num_bytes for runner in ranks.runners]
    assert sum(cached) == whole.runners[0].pool.num_bytes


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("gemma4_text", {"tensor_parallel": 2}, "gives each rank a kv head, and this model has 1 kv head for"),
        ("falcon_h1", {"tensor_parallel": 2}, "does not compute several mixers in 2 ranks, which layer 0 has"),
        ("llama", {"tensor_parallel": 3}, "gives each rank a kv head, and this model has 2 kv heads"),
        ("gpt_bigcode", {"tensor_parallel": 2}, "gives each rank a kv head, and this model has 1 kv head for"),
        (
            "qwen3_5_text",
            {"tensor_parallel": 3},
            "gives each rank a k head of each delta net, and this model has 2 k heads",
        ),
        (
            "mamba2",
            {"tensor_parallel": 9},
            "gives each rank a head of Mamba 2, and this model has 8 heads of Mamba 2 for",
        ),
        ("granitemoehybrid-mamba", {"tensor_parallel": 3}, "divides the 2 groups of Mamba 2 among 1 to 2 ranks or"),
        ("lfm2", {"tensor_parallel": 2, "program": "compiled"}, "computes in one process, and tensor_parallel"),
        ("llama", {"tensor_parallel": 2, "fuse": "none"}, "divides matrices with qkv and gate_up fused"),
        (
            "llama",
            {"tensor_parallel": 2, "program": "compiled"},
            "computes in one process, and tensor_parallel asks for more",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(name, settings, reason, models):
    checkpoint = open_checkpoint(save(name, models))
    with pytest.raises(ConfigError, match=reason):
        resolve_checkpoint(checkpoint, EngineConfig(**{"program": "eager", **settings}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", (("Q6_K", "Q5_K", "IQ4_XS", "IQ3_S"), ("F16", "Q3_K", "Q5_0", "MXFP4", "Q8_0", "IQ4_NL"))
)
@pytest.mark.parametrize("name", gguf_files.WIDE)
def test_codes_of_several_kinds(name, kinds, tmp_path):
    """Within one model, and within the matrix that is made of those of q, k and v."""
    path = gguf_files.write_codes(tmp_path / "x.gguf", name, [gguf_files.KIND[kind] for kind in kinds])
    check(path, sizes=(2,))


@pytest.mark.slow
def test_matrices_of_4_and_of_8_bits(llama, tmp_path):
    calibrated(llama, tmp_path / "mixed", algorithm="importance", target_bits=7.0)
    check(tmp_path / "mixed", sizes=(2,))
