"""What is added to scores by distance: the numbers of transformers, and long texts whose bits stay whole."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize
from transformers import BertConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from tests.jina_bert import PUBLISHED, JinaBert
from tests.marks import needs_native, skip_unless_it_runs
from tests.tiny_encoders import encoder, rows_of, save_encoder
from tests.tiny_models import VOCABULARY, prompt
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError
from tokenmill.kernels import native_library
from tokenmill.model.counts import count_parameters
from tokenmill.model.description import describe
from tokenmill.model.distance_bias import DistanceBias
from tokenmill.model.distance_bias_module import bias_table
from tokenmill.model.families import read_config
from tokenmill.program.native.program import Native
from tokenmill.program.spec import find_spec, refuse_mixers
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.pooling import pooling_of

# Without padding, whose tokens have no place of their own in transformers.
TEXTS = [[token + (token == 1) for token in prompt(length, seed=length)] for length in (300, 3, 129, 128, 40)]
LONG = {"max_position_embeddings": 402}
PROGRAMS = ["eager", pytest.param("native", marks=needs_native)]


def at_distances(table_ND, num_positions):
    """The numbers of every query and key, [N, T, T]."""
    places = torch.arange(num_positions)
    return table_ND[:, places[None] - places[:, None] + num_positions - 1]


def test_buckets_are_those_of_transformers():
    encoder_of = MPNetEncoder(encoder("mpnet").config)
    wanted = encoder_of.compute_position_bias(torch.empty(1, 500, 1))[0]
    found = bias_table(DistanceBias(4, 32, 128), encoder_of.relative_attention_bias.weight.detach(), 500)
    assert torch.equal(at_distances(found, 500), wanted.detach())


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16])
def test_slopes_are_those_of_transformers(heads):
    """BLOOM's are of keys before a query, and up to a number that all keys of a query share."""
    found = at_distances(bias_table(DistanceBias(heads), None, 300), 300)
    causal = build_alibi_tensor(torch.ones(1, 300), heads, torch.float32)[:, 0]
    torch.testing.assert_close(found[:, -1] - found[:, -1, :1], causal, rtol=1e-6, atol=1e-4)
    assert torch.equal(found, found.transpose(1, 2))


@pytest.mark.parametrize("program", PROGRAMS)
def test_long_texts_have_the_vectors_of_transformers(program, tmp_path):
    model = encoder("mpnet", **LONG)
    engine = load(save_encoder("mpnet", tmp_path, **LONG), dtype="float32", scheme="dense", program=program)
    assert engine.config.max_length == 400
    with torch.no_grad():
        rows = [model(torch.tensor([text])).last_hidden_state[0].double().mean(0).float() for text in TEXTS]
    torch.testing.assert_close(engine.embed(TEXTS, pooling="mean"), normalize(torch.stack(rows)), rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", native_library.BUILDS)
def test_a_long_text_has_the_same_bits_alone_in_a_batch_and_with_more_room(build, dtype, tmp_path, monkeypatch):
    """Heads are 32 wide, which a matrix unit takes whole. bfloat16 against float32."""
    skip_unless_it_runs(build)
    monkeypatch.setattr(Native, "build", build)
    path = save_encoder("mpnet", tmp_path, hidden_size=128, **LONG)
    whole = load(path, dtype=dtype, scheme="dense", threads=1).embed(TEXTS, pooling="mean")
    for how in ({"threads": 2, "max_sequences": 3, "block_size": 16}, {"max_length": 300, "max_step_tokens": 7}):
        engine = load(path, dtype=dtype, scheme="dense", **how)
        assert torch.equal(torch.cat([engine.embed([text], pooling="mean") for text in TEXTS]), whole), how
    exact = load(path, dtype="float32", program="eager").embed(TEXTS, pooling="mean")
    assert torch.cosine_similarity(whole, exact).min() > (0.999 if dtype == "bfloat16" else 0.999999)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", ["geglu", "reglu"])
def test_alibi_of_long_texts(kind, program, tmp_path):
    """llama.cpp has the same rows (cosine 0.9999997): benchmarks/gguf_encoders.py."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=400,
    )
    torch.manual_seed(7)
    model = JinaBert(config, kind).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.25).add_(0.5 * (weight.ndim == 1))
        rows = [model(torch.tensor([text])).last_hidden_state[0].double().mean(0).float() for text in TEXTS]
    model.save_pretrained(tmp_path / "x")
    engine = load(tmp_path / "x", dtype="float32", scheme="dense", program=program)
    assert engine.model_config.family == "jina_bert"
    torch.testing.assert_close(engine.embed(TEXTS), torch.stack(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_type": "original"}, "feed_forward_type"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"is_decoder": True}, "is_decoder"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"position_embedding_type": "absolute"}, "feed_forward_type"),
    ],
)
def test_another_jina_is_refused_by_the_key(change, message):
    with pytest.raises(CheckpointError, match=message):
        read_config({**PUBLISHED, **change})
    with pytest.raises(CheckpointError, match="feed_forward_type"):
        read_config({key: value for key, value in PUBLISHED.items() if key != "feed_forward_type"})


def test_jinas_config_tells_the_pooling(tmp_path):
    path = save_encoder("jina_bert", tmp_path)
    told = pooling_of(path)
    assert (told.pooling, told.normalize, told.is_told) == ("mean", False, True)
    rows = [rows_of("jina_bert", text[:60]) for text in TEXTS]
    found = load(path, dtype="float32", scheme="dense", max_length=64).embed([text[:60] for text in TEXTS])
    torch.testing.assert_close(found, torch.stack([each.mean(0) for each in rows]), rtol=1e-4, atol=1e-5)


def test_the_published_config_of_jina():
    """33 million parameters of the small one and 137 of the base, as their cards say, with a pooler."""
    base = read_config({**PUBLISHED, "vocab_size": 30528})
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    small = read_config({**PUBLISHED, **sizes, "vocab_size": 30528})
    found = [sum(count_parameters(each).values()) + each.hidden_size * (each.hidden_size + 1) for each in (small, base)]
    assert [round(number, -6) for number in found] == [33_000_000, 137_000_000]
    assert (base.positions, base.rope, base.max_position_embeddings, base.num_types) == ("rope", None, 8192, 2)


@pytest.mark.parametrize("number", [16, 64])
def test_other_numbers_of_buckets_are_refused(number):
    """transformers' class has a table of that many rows, and computes with 32 whatever it is."""
    with pytest.raises(CheckpointError, match="relative_attention_num_buckets"):
        read_config({"model_type": "mpnet", "relative_attention_num_buckets": number})


@pytest.mark.parametrize(
    ("program", "ranks"), [("compiled", 1), ("aot", 1), ("graphs", 1), ("eager", 2), ("native", 2)]
)
def test_programs_that_add_nothing_by_distance_say_so(program, ranks):
    """Of a decoder, too, which has nothing else that they do not compute."""
    model = replace(read_config({"model_type": "mpnet"}), both_ways=False, residual="serial")
    config = EngineConfig("x", tensor_parallel=ranks)
    told = refuse_mixers(find_spec(program), config, describe(model))
    assert told is not None and told.startswith("does not compute a bias of scores by distance")
    assert refuse_mixers(find_spec(program), config, describe(replace(model, distance_bias=None))) is None
