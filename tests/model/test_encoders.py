"""Encoders against transformers: what their tokens see, their norms, positions and types; and texts that stay whole."""

import json
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from tests.empty import check_empty
from tests.marks import needs_native
from tests.tiny_encoders import ENCODERS, rows_of, save_encoder
from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError, RequestError
from tokenmill.measure.cost import _workspace_bytes
from tokenmill.model.families import read_config
from tokenmill.registry import ENCODERS as REGISTERED

TEXTS = [prompt(length, seed=length) for length in (5, 1, 23, 64, 40)]
PROGRAMS = ["eager", pytest.param("native", marks=needs_native)]


def test_each_family_is_tested():
    assert set(REGISTERED) <= set(ENCODERS)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_transformers(name, program, tmp_path):
    engine = load(save_encoder(name, tmp_path), dtype="float32", scheme="dense", program=program, max_length=64)
    for pooling in ("cls", "mean", "last"):
        found = engine.embed(TEXTS, pooling=pooling, normalize=True)
        for vector, rows_TD in zip(found, expected(name), strict=True):
            pooled = {"cls": rows_TD[0], "mean": rows_TD.double().mean(0).float(), "last": rows_TD[-1]}[pooling]
            torch.testing.assert_close(vector, normalize(pooled, dim=0), rtol=1e-4, atol=1e-5)


@cache
def expected(name):
    """The rows of each text that transformers computes."""
    return [rows_of(name, tokens) for tokens in TEXTS]


WHOLE = ("bert", "modernbert", "gemma3_text")  # between them they have every kind of arithmetic
SCHEMES = [
    pytest.param(name, scheme, marks=() if name in WHOLE or number % 2 == place else pytest.mark.long)
    for number, name in enumerate(ENCODERS)
    for place, scheme in enumerate(("dense", "q8"))
]


@needs_native
@pytest.mark.parametrize(("name", "scheme"), SCHEMES)
def test_a_text_has_the_same_bits_alone_in_a_batch_and_with_few_blocks(name, scheme, tmp_path):
    path = save_encoder(name, tmp_path)
    kind = {"program": "native", "scheme": scheme, "max_length": 64}
    whole = load(path, **kind, threads=1).embed(TEXTS, pooling="mean")
    hows = (
        {"max_step_tokens": 7, "max_sequences": 4, "block_size": 4},
        {"max_sequences": 5, "block_size": 4, "cache_tokens": 72},
        {"threads": 2, "max_sequences": 3},
    )
    for how in hows:
        engine = load(path, **kind, **how)
        assert torch.equal(engine.embed(TEXTS, pooling="mean"), whole)
        assert torch.equal(torch.stack([engine.embed(tokens, pooling="mean") for tokens in TEXTS]), whole)
        check_empty(engine.core)


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_are_not_found_by_texts_that_begin_alike(program, tmp_path):
    engine = load(save_encoder("bert", tmp_path), dtype="float32", program=program, max_length=64, block_size=4)
    long, short = TEXTS[3], TEXTS[3][:40]
    alone = [load(engine.config.model, dtype="float32", program=program, max_length=64).embed(each, pooling="last")
             for each in (long, short)]  # fmt: skip
    for _ in range(2):
        torch.testing.assert_close(engine.embed([long, short], pooling="last"), torch.stack(alone))


def test_it_writes_no_text(tmp_path):
    engine = load(save_encoder("bert", tmp_path), max_length=64)
    with pytest.raises(RequestError, match="this model has no head"):
        engine.generate(TEXTS[0])
    with pytest.raises(RequestError, match="this model has no head"):
        session = engine.session()
        session.append(TEXTS[0])
        session.prefill()
    session.close()
    check_empty(engine.core)


def test_compiled_refuses_it_by_name(tmp_path):
    with pytest.raises(ConfigError, match="does not compute attention to later tokens"):
        load(save_encoder("bert", tmp_path), program="compiled", max_length=64)


def test_ranks_refuse_it_by_name(tmp_path):
    with pytest.raises(ConfigError, match="attention to later tokens in 2 ranks"):
        load(save_encoder("bert", tmp_path), max_length=64, tensor_parallel=2)


def test_names_of_the_first_releases_and_heads_are_read(tmp_path):
    path = save_encoder("bert", tmp_path)
    wanted = load(path, dtype="float32", program="eager", max_length=64).embed(TEXTS, pooling="mean")
    tensors = {
        f"bert.{name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta')}": each
        for name, each in load_file(path / "model.safetensors").items()
    }
    tensors["cls.predictions.bias"] = torch.zeros(9)
    tensors["bert.embeddings.position_ids"] = torch.arange(66)[None]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    found = load(path, dtype="float32", program="eager", max_length=64).embed(TEXTS, pooling="mean")
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("roberta", {"pad_token_id": 80}, "max_position_embeddings"),
        ("bert", {"windows_of_time": 3}, "windows_of_time"),
    ],
)
def test_other_arithmetic_is_refused_by_its_key(name, change, message, tmp_path):
    path = save_encoder(name, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message):
        load(path, max_length=64)


@pytest.mark.parametrize("program", PROGRAMS)
def test_texts_stay_whole_where_every_layer_has_a_window(program, tmp_path):
    """The cache has room for a whole text, however small it is, or says that it has none."""
    path = save_encoder("modernbert", tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["layer_types"] = ["sliding_attention"] * 4
    (path / "config.json").write_text(json.dumps(config))
    wanted = load(path, dtype="float32", program=program, max_length=64).embed(TEXTS, pooling="mean")
    small = {"cache_tokens": 64, "block_size": 4, "max_step_tokens": 8, "max_sequences": 2}
    found = load(path, dtype="float32", program=program, max_length=64, **small).embed(TEXTS, pooling="mean")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("bert", {"directionality": "bidi", "pooler_type": "first_token_transform", "pooler_fc_size": 768}),
        ("bert", {"is_causal": False}),
        ("distilbert", {"tie_weights_": True}),
        ("eurobert", {"bos_token": "<|begin_of_text|>", "mask_token": "<|mask|>", "clf_pooling": "late"}),
    ],
)
def test_keys_of_published_files_that_change_nothing_are_read(name, more, tmp_path):
    path = save_encoder(name, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **more}))
    load(path, max_length=64).embed(TEXTS)


def test_heads_of_eurobert_are_passed_over(tmp_path):
    path = save_encoder("eurobert", tmp_path)
    tensors = {f"model.{name}": each for name, each in load_file(path / "model.safetensors").items()}
    tensors |= {"lm_head.weight": torch.zeros(9), "classifier.weight": torch.zeros(9), "dense.bias": torch.zeros(9)}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    load(path, max_length=64).embed(TEXTS)


def test_the_workspace_is_that_of_whole_texts(tmp_path):
    path = save_encoder("bert", tmp_path)
    engines = [load(path, max_length=length, max_step_tokens=2) for length in (8, 64)]
    small, large = (_workspace_bytes(engine.config, engine.model_config) for engine in engines)
    assert large > 4 * small


NOMICS_OWN = {  # of nomic-embed-text-v1.5
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "causal": False,
    "dense_seq_output": True,
    "fused_bias_fc": True,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": None,
    "vocab_size": 30528,
}


def test_the_config_of_nomics_own_code():
    own = read_config(NOMICS_OWN)
    theirs = {"max_position_embeddings": 2048, "hidden_size": 768}
    theirs |= {"rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}
    assert own == read_config(NOMICS_OWN | theirs) == read_config({"model_type": "nomic_bert"})
    assert (own.rope.theta, own.max_position_embeddings, own.num_types) == (1000.0, 2048, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [("prenorm", True), ("qkv_proj_bias", True), ("activation_function", "gelu"), ("rotary_scaling_factor", 2),
     ("moe_every_n_layers", 2), ("rotary_emb_base", 10000), ("rotary_emb_fraction", 0.5), ("n_embd", 512)],
)  # fmt: skip
def test_another_nomic_is_refused_by_the_key(key, value):
    theirs = {"hidden_size": 768, "rope_theta": 1000.0}
    with pytest.raises(CheckpointError, match=key):
        read_config({**NOMICS_OWN, **theirs, key: value})
