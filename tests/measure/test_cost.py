"""The planner's arithmetic against what is really allocated."""

import pytest
import torch

import tokenmill
from tests.tiny_models import CONTEXT, TINY, save
from tokenmill.errors import ConfigError
from tokenmill.loader.resolve import resolve
from tokenmill.measure.cost import Cost, cost_of, kv_bytes_per_token
from tokenmill.memory.available import available_bytes
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.description import count_parameters
from tokenmill.model.families import read_config
from tokenmill.program import preferred_schemes
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


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_of_the_file_is_counted(name, models):
    """All tensors of a saved model are parameters; buffers and a tied head's copy are not saved."""
    checkpoint = open_checkpoint(save(name, models))
    counted = sum(count_parameters(read_config(checkpoint.config)).values())
    assert counted == sum(torch.Size(shape).numel() for shape in checkpoint.shapes.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("program", "scheme"), FORMS)
@pytest.mark.parametrize("name", ["llama-mha-tied", "gpt2", "gpt_neox", "qwen3", "mixtral"])
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


def test_known_figures():
    """SmolLM2-135M's model card says 135 M; 2 · layers · kv heads · head dim · 2 bytes by hand."""
    assert sum(count_parameters(SMOLLM2).values()) == 134_515_008
    assert kv_bytes_per_token(SMOLLM2, "bfloat16") == 2 * 30 * 3 * 64 * 2


def test_a_token_costs_the_same_whatever_the_block_size():
    for block_size in (1, 16, 2048):
        resolved = resolve(EngineConfig(block_size=block_size), SMOLLM2)
        spec = resolved.cache
        assert spec.bytes_per_token == kv_bytes_per_token(SMOLLM2, resolved.config.dtype)
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
