"""Encoders as GGUF files: written and read again; and the keys that llama.cpp's converter writes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.gguf_files import vocabulary, with_tensors
from tests.marks import needs_native
from tests.tiny_encoders import save_encoder
from tests.tiny_models import prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.classifier import classifier_of
from tokenmill.weights.gguf.config import read_gguf_config
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.pooling import pooling_of
from tokenmill.weights.write.quantize import quantize

TEXTS = [prompt(length, seed=length) for length in (5, 1, 23, 60)]
# Of all-MiniLM-L6-v2, by convert_hf_to_gguf.py of the source of llama-cpp-python 0.3.36.
CONVERTED = {
    "bert.block_count": 6,
    "bert.context_length": 512,
    "bert.embedding_length": 384,
    "bert.feed_forward_length": 1536,
    "bert.attention.head_count": 12,
    "bert.attention.layer_norm_epsilon": 9.999999960041972e-13,
    "bert.attention.causal": False,
    "bert.pooling_type": 1,
}


def written(path, target, scheme):
    quantize(open_checkpoint(path), target, Silent(), scheme, export="gguf")
    return target


# Of the same source, conversion/bert.py and conversion/gemma.py, by reading.
WRITTEN = {
    "jina_bert": ("jina-bert-v2", {}, {"attention.layer_norm_epsilon", "attention.causal"}),
    "nomic_bert": ("nomic-bert", {}, {"rope.freq_base", "attention.layer_norm_epsilon"}),
    "modernbert": (
        "modern-bert",
        {"norm_bias": False},
        {"rope.freq_base_swa", "attention.sliding_window", "attention.sliding_window_pattern", "hidden_activation"},
    ),
    "eurobert": ("eurobert", {}, {"attention.layer_norm_rms_epsilon", "rope.freq_base"}),
    "gemma3_text": ("gemma-embedding", {}, {"attention.sliding_window", "rope.freq_base_swa"}),
}


@needs_native
@pytest.mark.parametrize("name", WRITTEN)
def test_encoders_beside_bert(name, tmp_path):
    """llama.cpp reads these files with the rows of transformers: benchmarks/gguf_encoders.py."""
    arch, more, keys = WRITTEN[name]
    path = save_encoder(name, tmp_path, **more)
    file = written(path, tmp_path / "x.gguf", "none")
    header = read_header(file)
    assert header.metadata["general.architecture"] == arch and {f"{arch}.{key}" for key in keys} <= set(header.metadata)
    engine, wanted = (load(each, dtype="float32", max_length=64) for each in (file, path))
    assert engine.model_config.both_ways and not engine.model_config.has_head
    for pooling in ("mean", "cls", "last"):
        found = engine.embed(TEXTS, pooling=pooling), wanted.embed(TEXTS, pooling=pooling)
        assert torch.cosine_similarity(*found).min() > 0.99999


@needs_native
def test_gates_of_jinas_older_files(tmp_path):
    """Of 2024 and before, in which llama.cpp's converter wrote them apart."""
    path = save_encoder("jina_bert", tmp_path)
    file = written(path, tmp_path / "x.gguf", "none")
    tensors = load_file(path / "model.safetensors")
    apart = {}
    for layer in range(3):
        gates, others = tensors[f"encoder.layer.{layer}.mlp.gated_layers.weight"].chunk(2)
        apart |= {f"blk.{layer}.ffn_gate.weight": gates, f"blk.{layer}.ffn_up.weight": others}
    kept = file
    for layer in range(3):
        kept = with_tensors(kept, tmp_path / f"{layer}.gguf", {}, {}, without=f"blk.{layer}.ffn_up")
    older = with_tensors(kept, tmp_path / "y.gguf", apart, {})
    found, wanted = (load(each, dtype="float32", max_length=64).embed(TEXTS, pooling="mean") for each in (older, file))
    assert torch.cosine_similarity(found, wanted).min() > 0.99999


@needs_native
def test_a_file_with_q_k_and_v_in_one_matrix(tmp_path):
    """jina-reranker-v2's, whose directory has them so, and llama.cpp's converter leaves them."""
    path = save_encoder("bert", tmp_path)
    kept = file = written(path, tmp_path / "x.gguf", "none")
    tensors, fused = load_file(path / "model.safetensors"), {}
    for layer in range(3):
        own = f"encoder.layer.{layer}.attention.self."
        for part in ("weight", "bias"):
            rows = [tensors[f"{own}{name}.{part}"] for name in ("query", "key", "value")]
            fused[f"blk.{layer}.attn_qkv.{part}"] = torch.cat(rows)
        for letter in "qkv":
            kept = with_tensors(kept, tmp_path / f"{layer}{letter}.gguf", {}, {}, without=f"blk.{layer}.attn_{letter}.")
    other = with_tensors(kept, tmp_path / "y.gguf", fused, {})
    found, wanted = (load(each, dtype="float32", max_length=64).embed(TEXTS, pooling="mean") for each in (other, file))
    assert torch.equal(found, wanted)


def test_further_norms_are_named(tmp_path):
    """jina-embeddings-v2-base-code's, which llama.cpp takes for the same architecture."""
    file = written(save_encoder("jina_bert", tmp_path), tmp_path / "x.gguf", "none")
    norms = {f"blk.0.{name}.weight": torch.ones(48) for name in ("attn_q_norm", "attn_k_norm", "attn_norm_2")}
    with pytest.raises(CheckpointError, match=r"no jina_bert has; 3 unexpected: .*attn_k_norm.*attn_norm_2"):
        open_checkpoint(with_tensors(file, tmp_path / "y.gguf", norms, {}))
        load(tmp_path / "y.gguf", dtype="float32", max_length=64)


def test_what_llama_cpp_computes_otherwise_of_jinas_is_refused(tmp_path):
    path = save_encoder("jina_bert", tmp_path)
    file = written(path, tmp_path / "x.gguf", "none")
    header = read_header(file)
    header.metadata["jina-bert-v2.attention.max_alibi_bias"] = 4.0
    with pytest.raises(CheckpointError, match="max_alibi_bias"):
        read_gguf_config(path, header)
    head = {
        "cls.weight": torch.randn(1, 48),
        "cls.bias": torch.randn(1),
    }  # jina-reranker-v1's, after a matrix that is not there
    with pytest.raises(CheckpointError, match="leaves out the pooler"):
        classifier_of(with_tensors(file, tmp_path / "y.gguf", head, {"jina-bert-v2.pooling_type": 4}))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "feed_forward_type": "reglu"}))
    with pytest.raises(ConfigError, match="activation"):
        written(path, tmp_path / "z.gguf", "none")


def test_windows_of_modernbert(tmp_path):
    """llama.cpp counts both sides of a token together, and the layers of a number from one without a window on."""
    path = save_encoder("modernbert", tmp_path, norm_bias=False)
    header = read_header(written(path, tmp_path / "x.gguf", "none"))
    assert header.metadata["modern-bert.attention.sliding_window"] == 10
    config = read_gguf_config(path, header)
    wanted = read_config(json.loads((path / "config.json").read_text()))
    assert read_config(config).windows == wanted.windows == (None, 6, 6, None)
    header.metadata["modern-bert.attention.sliding_window_pattern"] = 2
    assert read_config(read_gguf_config(path, header)).windows == (None, 6, None, 6)
    del header.metadata["modern-bert.attention.sliding_window_pattern"]
    assert read_config(read_gguf_config(path, header)).windows == (None, 6, 6, None)
    header.metadata["modern-bert.hidden_activation"] = "silu"
    assert read_config(read_gguf_config(path, header)).activation == "silu"


@needs_native
def test_matrices_behind_the_pooling(tmp_path):
    """EmbeddingGemma's, which llama.cpp's converter writes with --sentence-transformers-dense-modules."""
    file = written(save_encoder("gemma3_text", tmp_path), tmp_path / "x.gguf", "none")
    first, second = torch.randn(96, 48), torch.randn(48, 96)
    keys = {f"gemma-embedding.dense_2_feat_{side}": size for side, size in (("in", 48), ("out", 96))}
    keys |= {"gemma-embedding.pooling_type": 1}
    dense = with_tensors(file, tmp_path / "y.gguf", {"dense_2.weight": first, "dense_3.weight": second}, keys)
    plain = load(file, dtype="float32", max_length=64).embed(TEXTS, pooling="mean", normalize=False)
    found = load(dense, dtype="float32", max_length=64).embed(TEXTS)
    assert torch.cosine_similarity(found, plain @ first.T @ second.T).min() > 0.99999
    assert pooling_of(dense).steps == (dense / "dense_2", dense / "dense_3")


@needs_native
def test_a_head_that_scores(tmp_path):
    """bge-reranker's: llama.cpp's converter names its matrices cls and cls.output."""
    file = written(save_encoder("bert", tmp_path), tmp_path / "x.gguf", "none")
    tensors = {"cls.weight": torch.randn(48, 48), "cls.bias": torch.randn(48), "cls.output.weight": torch.randn(1, 48)}
    tensors |= {"cls.output.bias": torch.randn(1)}
    scoring = with_tensors(file, tmp_path / "y.gguf", tensors, {"bert.pooling_type": 4})
    head = classifier_of(scoring)
    assert (head.pooling, head.num_labels, head.activation) == ("cls", 1, "Sigmoid")
    row = torch.randn(48)
    wanted = torch.tanh(tensors["cls.weight"] @ row + tensors["cls.bias"])
    wanted = tensors["cls.output.weight"] @ wanted + tensors["cls.output.bias"]
    found = row.numpy()
    for step in head.steps:
        found = step(found)
    assert torch.allclose(torch.from_numpy(found), wanted, atol=1e-5)
    vectors = [load(each, dtype="float32", max_length=64).embed(TEXTS, pooling="cls") for each in (scoring, file)]
    assert torch.equal(*vectors) and not pooling_of(scoring).is_told
    assert classifier_of(file) is None
    del tensors["cls.weight"], tensors["cls.bias"]
    with pytest.raises(CheckpointError, match="leaves out the pooler"):
        classifier_of(with_tensors(file, tmp_path / "z.gguf", tensors, {"bert.pooling_type": 4}))


@needs_native
@pytest.mark.parametrize(("name", "missing"), [("bert", "cls.weight and cls.output.weight"), ("llama", "cls.output")])
def test_a_reranker_without_its_head_is_refused(name, missing, tmp_path):
    """llama.cpp's build_pooling takes the pooled row itself for the scores then."""
    path = save_encoder(name, tmp_path) if name == "bert" else save(name, tmp_path)
    file = written(path, tmp_path / "x.gguf", "none")
    size = read_header(file).metadata[f"{name}.embedding_length"]
    before = {} if name == "bert" else {"cls.weight": torch.randn(size, size)}
    lacking = with_tensors(file, tmp_path / "y.gguf", before, {f"{name}.pooling_type": 4})
    for read in (classifier_of, pooling_of):
        with pytest.raises(CheckpointError, match=rf"y\.gguf has pooling_type 4.* lacks its head, {missing}"):
            read(lacking)
    engine = load(lacking, dtype="float32", max_length=64)
    with pytest.raises(CheckpointError, match="lacks its head"):
        engine.embed(TEXTS, pooling="mean")
    with pytest.raises(CheckpointError, match="lacks its head"):
        engine.rerank("w1", ["w2"])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cls.weight", (48, 40)), ("cls.bias", (1,)), ("cls.output.weight", (1, 40)), ("cls.output.weight", (48,)),
     ("cls.output.bias", (3,))],
)  # fmt: skip
def test_a_head_of_other_shapes_is_refused(name, shape, tmp_path):
    file = written(save_encoder("bert", tmp_path), tmp_path / "x.gguf", "none")
    shapes = {"cls.weight": (48, 48), "cls.bias": (48,), "cls.output.weight": (1, 48), "cls.output.bias": (1,)}
    tensors = {each: torch.randn(size) for each, size in (shapes | {name: shape}).items()}
    with pytest.raises(CheckpointError) as refused:
        classifier_of(with_tensors(file, tmp_path / "y.gguf", tensors, {"bert.pooling_type": 4}))
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "keys"),
    [("gemma3_text", {"gemma-embedding.dense_2_feat_out": 96}),
     ("nomic_bert", {"nomic-bert.rope.dimension_count": 6}), ("modernbert", {"modern-bert.rope.dimension_count": 6}),
     ("modernbert", {"modern-bert.attention.sliding_window": 0})],
)  # fmt: skip
def test_keys_that_contradict_are_refused(name, keys, tmp_path):
    path = save_encoder(name, tmp_path, **WRITTEN[name][1])
    header = read_header(written(path, tmp_path / "x.gguf", "none"))
    header.metadata.update(keys)
    with pytest.raises(CheckpointError, match=r"dimension_count|sliding_window|dense_2_feat_out"):
        read_gguf_config(path, header)


def test_another_pooling_of_a_head_is_refused(tmp_path):
    file = written(save_encoder("modernbert", tmp_path, norm_bias=False), tmp_path / "x.gguf", "none")
    tensors = {"cls.weight": torch.randn(48, 48), "cls.output.weight": torch.randn(1, 48)}
    for number in (9, "cls", True):
        keys = {"modern-bert.classifier.pooling_type": number}
        with pytest.raises(CheckpointError, match=r"classifier\.pooling_type"):
            classifier_of(with_tensors(file, tmp_path / f"{number}.gguf", tensors, keys))
    with pytest.raises(CheckpointError, match="leaves out the pooler"):
        del tensors["cls.weight"]
        classifier_of(with_tensors(file, tmp_path / "y.gguf", tensors, {}))


def test_a_decoder_with_the_rows_of_its_answers_is_asked(tmp_path):
    """Qwen3-Reranker's file: two rows of its head, "yes" and "no", stand beside it."""
    path = save("qwen3", tmp_path)
    file = written(path, tmp_path / "x.gguf", "none")
    keys = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"]}
    size = open_checkpoint(path).config["hidden_size"]
    scoring = with_tensors(file, tmp_path / "y.gguf", {"cls.output.weight": torch.randn(2, size)}, keys)
    assert classifier_of(scoring) is None
    assert load(scoring, dtype="float32").generate([5, 6], max_new_tokens=4).tokens


@needs_native
def test_what_is_written_is_read_again(tmp_path):
    path = save_encoder("bert", tmp_path)
    (path / "modules.json").write_text('[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}]')
    (path / "1").mkdir()
    (path / "1" / "config.json").write_text('{"pooling_mode": "cls"}')
    file = written(path, tmp_path / "x.gguf", "none")
    assert pooling_of(file).pooling == "cls" and pooling_of(file).is_told
    engine, wanted = load(file, dtype="float32", max_length=64), load(path, dtype="float32", max_length=64)
    assert engine.model_config.both_ways and not engine.model_config.has_head
    similar = torch.cosine_similarity(engine.embed(TEXTS), wanted.embed(TEXTS, pooling="cls"))
    assert similar.min() > 0.99999


def test_the_keys_of_llama_cpps_converter_are_read(tmp_path):
    path = save_encoder("bert", tmp_path)
    header = read_header(written(path, tmp_path / "x.gguf", "none"))
    own = {key: value for key, value in header.metadata.items() if key.startswith("bert.")}
    ours = {"attention.head_count_kv", "vocab_size"}  # which the converter does not write
    assert {key.removeprefix("bert.") for key in own} - ours == {key.removeprefix("bert.") for key in CONVERTED} - {
        "pooling_type"
    }
    sizes = {"bert.block_count": 3, "bert.context_length": 66, "bert.embedding_length": 48}
    sizes |= {"bert.feed_forward_length": 80, "bert.attention.head_count": 4}
    others = {key: value for key, value in header.metadata.items() if not key.startswith("bert.")}
    header.metadata.clear()
    header.metadata.update({**others, **CONVERTED, **sizes})
    model = read_config(read_gguf_config(path, header))
    assert (model.num_types, model.norm_eps, model.both_ways, model.hidden_size) == (2, pytest.approx(1e-12), True, 48)
    header.metadata["bert.attention.causal"] = True
    with pytest.raises(CheckpointError, match=r"attention\.causal"):
        read_gguf_config(path, header)


def test_what_llama_cpp_does_not_read_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match=r"one without biases, which llama\.cpp requires"):
        written(save_encoder("modernbert", tmp_path), tmp_path / "x.gguf", "none")
    with pytest.raises(ConfigError, match=r"a family for which llama\.cpp has an architecture"):
        written(save_encoder("roberta", tmp_path), tmp_path / "x.gguf", "none")


@pytest.mark.parametrize(
    ("arch", "wanted"),
    [("modern-bert", [1, 65, 66, 2, 67, 2]), *((name, [1, 65, 66, 2, 2, 67, 2]) for name in ("bert", "jina-bert-v2"))],
)
def test_pairs_of_texts_with_a_vocabulary_like_gpt_2s(arch, wanted):
    """One mark between two texts for ModernBERT, two for RoBERTa, as their own tokenizers put them."""
    marks = {"add_bos_token": True, "add_eos_token": True, "bos_token_id": 1, "eos_token_id": 2}
    keys = {f"tokenizer.ggml.{name}": value for name, value in marks.items()}
    tokens, types, second = tokenizer_from_gguf({**vocabulary(), **keys, "general.architecture": arch}).encode_pair(
        "ab", "c"
    )
    assert tokens == wanted and not any(types) and second == [len(wanted) - 2]
