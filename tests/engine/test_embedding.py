"""Embeddings against transformers' hidden states, in any chunk and batch, and beside everything else that runs."""

import json
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests import gguf_files
from tests.empty import check_empty
from tests.marks import needs_native
from tests.tiny_models import prompt, reference, save
from tests.word_model import save_word_model
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError, RequestError
from tokenmill.hub.progress import Silent
from tokenmill.loader.pack import save_packed_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.pooling import TextPooling, pooling_of
from tokenmill.weights.write.quantize import quantize

TEXTS = [prompt(length, seed=length) for length in (5, 1, 23, 64, 40)]
POOLINGS = ("last", "mean", "cls", "weighted")


@cache
def rows_of(name: str, tokens: tuple[int, ...]) -> torch.Tensor:
    return reference(name)(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].double()


def expected(name: str, tokens: list[int], pooling: str) -> torch.Tensor:
    rows_TD = rows_of(name, tuple(tokens))
    weights = torch.arange(1, len(tokens) + 1).double()
    pooled = {
        "last": rows_TD[-1],
        "cls": rows_TD[0],
        "mean": rows_TD.mean(0),
        "weighted": (rows_TD * weights[:, None]).sum(0) / weights.sum(),
    }[pooling]
    return torch.nn.functional.normalize(pooled, dim=0).float()


@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("pooling", POOLINGS)
@torch.inference_mode()
def test_vectors_are_those_of_transformers(pooling, program, models, engine_of):
    path = save("qwen3", models)
    engine = engine_of(path, dtype="float32", program=program, max_length=64, threads=1)
    found = engine.embed(TEXTS, pooling=pooling)
    assert found.dtype == torch.float32 and found.shape == (5, engine.model_config.hidden_size)
    for vector, tokens in zip(found, TEXTS, strict=True):
        torch.testing.assert_close(vector, expected("qwen3", tokens, pooling), rtol=1e-4, atol=1e-5)
        assert torch.cosine_similarity(vector, expected("qwen3", tokens, pooling), dim=0) > 0.99999


@needs_native
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_text_has_the_same_bits_alone_in_a_batch_and_in_chunks(pooling, models, engine_of):
    path = save("qwen3", models)
    quiet = engine_of(path, program="native", max_length=64, threads=1, prefix_cache=False)
    whole = quiet.embed(TEXTS, pooling=pooling)
    for how in ({"max_step_tokens": 7, "block_size": 4}, {"threads": 2, "max_sequences": 1}, {"prefix_cache": False}):
        engine = engine_of(path, program="native", max_length=64, **how)
        engine.core.clear_prefix_cache()
        for _ in range(2):  # the second time the cache has rows
            alone = torch.stack([engine.embed(tokens, pooling=pooling) for tokens in reversed(TEXTS)]).flip(0)
            assert torch.equal(alone, whole) and torch.equal(engine.embed(TEXTS, pooling=pooling), whole)


@needs_native
def test_others_run_meanwhile_and_keep_their_texts(tmp_path):
    engine = load(save("qwen3", tmp_path), program="native", max_length=64, max_sequences=3, cache_tokens=128)
    alone, wanted = engine.embed(TEXTS, pooling="mean"), engine.generate(TEXTS[2], max_new_tokens=30, ignore_eos=True)
    texts: list = []
    others = [
        threading.Thread(
            target=lambda: texts.append(engine.generate(TEXTS[2], max_new_tokens=30, ignore_eos=True).tokens)
        )
        for _ in range(4)
    ]
    for each in others:
        each.start()
    assert all(torch.equal(engine.embed(TEXTS, pooling="mean"), alone) for _ in range(5))
    for each in others:
        each.join()
    assert texts == [wanted.tokens] * 4
    check_empty(engine.core)


def test_no_text_has_no_vector(llama):
    assert load(llama, max_length=64).embed([]).shape == (0, 48)


def test_dimensions_are_cut_before_the_length_is_made_1(llama):
    engine = load(llama, dtype="float32", max_length=64)
    plain = engine.embed(TEXTS, normalize=False)
    cut = engine.embed(TEXTS, dimensions=8)
    torch.testing.assert_close(cut, torch.nn.functional.normalize(plain[:, :8], dim=1))
    assert engine.embed(TEXTS[0], dimensions=8).shape == (8,)


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([[]], {}, "empty"),
        ([prompt(65)], {}, "65"),
        (TEXTS, {"dimensions": 10**6}, "dimensions = 1000000: a whole number from 1 to"),
        (TEXTS, {"dimensions": True}, "dimensions = True"),
        (TEXTS, {"pooling": "max"}, "pooling = 'max': one of last, mean, cls, weighted"),
        (TEXTS, {"prompt_name": "query"}, "prompt_name = 'query': this model's files have none"),
    ],
)
def test_bad_input_is_refused_by_name(texts, settings, message, llama, engine_of):
    with pytest.raises(RequestError, match=message):
        engine_of(llama, dtype="float32", max_length=64).embed(texts, **settings)


def test_a_text_that_is_too_long_is_cut_if_that_is_asked_for(llama):
    engine = load(llama, dtype="float32", max_length=64)
    assert torch.equal(engine.embed(prompt(80), truncate=True), engine.embed(prompt(80)[:64]))


def test_a_program_that_hands_out_no_rows_is_named(llama):
    engine = load(llama, dtype="float32", max_length=64, program="compiled")
    with pytest.raises(ConfigError, match=r"compiled.*only with native or eager"):
        engine.embed(TEXTS)


@pytest.mark.parametrize(
    ("modules", "pooling", "found"),
    [
        (["Transformer", "Pooling", "Normalize"], {"pooling_mode_lasttoken": True}, ("last", True)),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            ("mean", False),
        ),
        (["Transformer", "Pooling"], {"pooling_mode": "cls"}, ("cls", False)),
        (["Transformer", "Pooling", "LSTM"], {"pooling_mode": "mean"}, "type 'LSTM', which is not supported yet"),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, ("mean", False)),
        (["Transformer"], {}, "has no pooling"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "asks for pooling_mode_max_tokens"),
        (["Transformer", "Pooling"], {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)
def test_the_files_of_sentence_transformers_say_the_pooling(modules, pooling, found, tmp_path):
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{at}_{kind}"} for at, kind in enumerate(modules)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    if isinstance(found, str):
        with pytest.raises(CheckpointError, match=found):
            pooling_of(tmp_path)
        return
    told = pooling_of(tmp_path)
    assert (told.pooling, told.normalize) == found and told.prompts["query"] == "Find: "


def dense(path: Path, outputs: int, inputs: int, activation: str, **more) -> torch.nn.Linear:
    """Save a Dense module as sentence-transformers does."""
    torch.manual_seed(outputs)
    linear = torch.nn.Linear(inputs, outputs)
    config = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": activation, **more}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file({f"linear.{name}": each.detach() for name, each in linear.named_parameters()}, path / "model.safetensors")
    return linear


def save_modules(path: Path, kinds: list[str]) -> None:
    listed = [{"type": f"x.{kind}", "path": f"{at}_{kind}"} for at, kind in enumerate(kinds)]
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))


def test_dense_modules_multiply_the_pooled_row(tmp_path):
    path = save("qwen3", tmp_path)
    save_modules(path, ["Transformer", "Pooling", "Dense", "Normalize", "Dense", "Normalize"])
    first = dense(path / "2_Dense", 40, reference("qwen3").config.hidden_size, "torch.nn.modules.activation.Tanh")
    second = dense(path / "4_Dense", 24, 40, "torch.nn.modules.linear.Identity")
    engine = load(path, dtype="float32", max_length=64)
    plain = engine.embed(TEXTS, normalize=False)
    pooled = torch.stack([mean_of(each) for each in TEXTS])
    wanted = second(torch.nn.functional.normalize(first(pooled).tanh(), dim=1)).detach()
    torch.testing.assert_close(plain, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(engine.embed(TEXTS), torch.nn.functional.normalize(wanted, dim=1), rtol=1e-4, atol=1e-5)
    assert engine.embed(TEXTS, dimensions=8).shape == (5, 8)
    with pytest.raises(RequestError, match="from 1 to 24"):
        engine.embed(TEXTS, dimensions=25)


@torch.no_grad()
def mean_of(tokens: list[int]) -> torch.Tensor:
    return reference("qwen3")(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].mean(0)


@pytest.mark.parametrize(
    ("inputs", "how", "message"),
    [
        (40, {"activation_function": "os.system"}, "activation_function"),
        (40, {"out_features": 25}, "has the tensors"),
        (40, {"strange": 1}, "strange"),
        (41, {}, "multiplies 41 numbers"),
    ],
)
def test_a_dense_module_that_is_not_understood_is_refused(inputs, how, message, tmp_path):
    path = save("qwen3", tmp_path)
    width = reference("qwen3").config.hidden_size
    save_modules(path, ["Transformer", "Pooling", "Dense"])
    dense(path / "2_Dense", 24, width + inputs - 40, "torch.nn.modules.linear.Identity", **how)
    message = message.replace("41", str(width + 1))
    with pytest.raises(CheckpointError, match=message):
        load(path, max_length=64).embed(TEXTS)


def test_a_default_prompt_stands_before_texts_and_letters_are_made_small(tmp_path):
    path = save_word_model(tmp_path)
    save_modules(path, ["Transformer", "Pooling"])
    settings = {"prompts": {"query": "W5 ", "other": "w6 "}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 4, "do_lower_case": True}))
    engine = load(path, dtype="float32")
    assert torch.equal(engine.embed("W9"), engine.embed([5, 9]))
    assert torch.equal(engine.embed("w9", prompt_name=""), engine.embed([9]))
    assert torch.equal(engine.embed("w9", prompt_name="other"), engine.embed([6, 9]))
    with pytest.raises(RequestError, match=r"5 tokens are over the 4"):
        engine.embed("w1 w2 w3 w4")
    assert torch.equal(engine.embed("w1 w2 w3 w4", truncate=True), engine.embed([5, 1, 2, 3]))


def test_a_folder_outside_of_the_model_is_not_read(tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": "../1_Pooling"}]))
    with pytest.raises(CheckpointError, match="outside of the model's"):
        pooling_of(tmp_path)


ASKED_OF_A_HEAD = (
    lambda engine: engine.generate(TEXTS[2], max_new_tokens=2),
    lambda engine: engine.logits(TEXTS[2]),
    lambda engine: engine.score(TEXTS[2], [[1, 2]]),
    lambda engine: list(engine.stream(TEXTS[2], max_new_tokens=2)),
    lambda engine: engine.session(TEXTS[2]).generate(max_new_tokens=2),
)


@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
@torch.inference_mode()
def test_a_model_that_was_saved_without_a_head_gives_vectors_and_no_text(program, tmp_path):
    """Qwen3-Embedding-8B is saved so: transformers would make up a head of random numbers."""
    reference("qwen3").model.save_pretrained(tmp_path)
    for _ in range(2):  # the second time from the packed copy, where there is one
        engine = load(tmp_path, dtype="float32", program=program, max_length=64, threads=1)
        torch.testing.assert_close(engine.embed(TEXTS[2]), expected("qwen3", TEXTS[2], "last"), rtol=1e-4, atol=1e-5)
        for ask in ASKED_OF_A_HEAD:
            with pytest.raises(RequestError, match="this model has no head"):
                ask(engine)
        assert torch.equal(engine.embed(TEXTS), engine.embed(TEXTS))
        check_empty(engine.core)


def test_a_model_whose_head_is_missing_by_mistake_is_refused(tmp_path):
    reference("qwen3").model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"1 missing: lm_head.weight"):
        load(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    load(tmp_path, max_length=64)


@needs_native
def test_rows_that_nobody_can_find_again_are_not_kept(tmp_path):
    """Of a mean every row is computed, so its blocks are not offered, in memory or on disk."""
    folder = tmp_path / "prefixes"
    engine = load(save("qwen3", tmp_path), max_length=64, block_size=4, prefix_dir=str(folder))
    counts = []
    for pooling in ("last", "mean", "mean", "cls", "weighted", "last"):
        engine.embed(TEXTS, pooling=pooling)
        check_empty(engine.core)
        counts.append(sum(1 for file in folder.rglob("*") if file.is_file()))
    assert counts[0] > 0 and set(counts) == {counts[0]}


@pytest.mark.parametrize("trials", [6, pytest.param(60, marks=pytest.mark.long)])
def test_an_engine_that_is_closed_meanwhile_says_so(trials, llama):
    for _ in range(trials):
        engine = load(llama, dtype="float32", max_length=64)
        closing = threading.Thread(target=engine.close)
        closing.start()
        with suppress(RequestError):
            while True:
                engine.embed(TEXTS)
        closing.join()


@pytest.mark.parametrize("texts", [[[1], 5], [[1], None], [[1], object()]])
def test_what_is_no_text_is_refused(texts, llama, engine_of):
    with pytest.raises(RequestError, match="text 2 of 2"):
        engine_of(llama, dtype="float32", max_length=64).embed(texts)


@pytest.mark.parametrize("settings", [{"pooling": {}}, {"pooling": ""}, {"prompt_name": []}, {"dimensions": 1.0}])
def test_settings_of_another_type_are_refused(settings, llama, engine_of):
    with pytest.raises(RequestError, match=next(iter(settings))):
        engine_of(llama, dtype="float32", max_length=64).embed(TEXTS, **settings)


@pytest.mark.parametrize(("number", "pooling"), [(None, "last"), (0, "last"), (1, "mean"), (2, "cls"), (3, "last")])
def test_the_header_of_a_gguf_file_says_the_pooling(number, pooling, tmp_path):
    path = gguf_files.write(tmp_path / "x.gguf", "llama", gguf_files.KIND.Q8_0, metadata={"pooling_type": number})
    assert pooling_of(path) == TextPooling(pooling, is_told=bool(number))


@pytest.mark.parametrize("number", [5, 99, True, "mean"])
def test_another_pooling_in_a_header_is_refused_by_its_value(number, tmp_path):
    path = gguf_files.write(tmp_path / "x.gguf", "llama", gguf_files.KIND.Q8_0, metadata={"pooling_type": number})
    with pytest.raises(CheckpointError, match=f"pooling_type {number!r}; known are 1, 2, 3"):
        pooling_of(path)


@pytest.mark.parametrize("classes", [None, [], {}, {"a": 1}, 5, "Qwen3Model", [None]])
def test_architectures_of_another_type_say_nothing_of_a_head(classes, tmp_path):
    reference("qwen3").model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": classes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"1 missing: lm_head.weight"):
        load(tmp_path)


def pack(path: Path, file: Path) -> None:
    save_packed_model(open_checkpoint(path), EngineConfig(program="native"), file, lambda *_: None)


@needs_native
def test_a_packed_model_says_the_pooling_of_its_files(tmp_path):
    path = save("qwen3", tmp_path)
    save_modules(path, ["Transformer", "Pooling"])
    wanted = load(path, program="native", max_length=64).embed(TEXTS)
    pack(path, file := tmp_path / "model.tmill")
    assert torch.equal(load(file, max_length=64).embed(TEXTS), wanted)
    dense(path / "2_Dense", 24, reference("qwen3").config.hidden_size, "torch.nn.modules.linear.Identity")
    shutil.rmtree(path / "1_Pooling")
    save_modules(path, ["Transformer", "Pooling", "Dense"])
    pack(path, other := tmp_path / "other.tmill")
    with pytest.raises(CheckpointError, match=r"multiplied by matrices, which are not in the file"):
        load(other, max_length=64).embed(TEXTS)


def test_a_quantised_directory_keeps_the_files_of_sentence_transformers(tmp_path):
    path = save("qwen3", tmp_path)
    save_modules(path, ["Transformer", "Pooling", "Dense"])
    dense(path / "2_Dense", 24, reference("qwen3").config.hidden_size, "torch.nn.modules.linear.Identity")
    (path / "sentence_roberta_config.json").write_text('{"max_seq_length": 50}')
    quantize(open_checkpoint(path), out := tmp_path / "out", Silent(), "q8")
    assert pooling_of(out) == replace(pooling_of(path), steps=(out / "2_Dense",))
    assert load(out, max_length=64).embed(TEXTS[0]).shape == (24,)
    with pytest.raises(RequestError, match="over the 50"):
        load(out, max_length=64).embed(TEXTS[3])


def test_the_layout_of_the_first_sentence_transformers(tmp_path):
    """The model is a folder beside its pooling, and config.json around it has a version alone."""
    whole, outer = save("qwen3", tmp_path / "whole"), tmp_path / "outer"
    for path in (whole, outer):
        path.mkdir(exist_ok=True)
        save_modules(path, ["Transformer", "Pooling", "Dense"])
        dense(path / "2_Dense", 24, reference("qwen3").config.hidden_size, "torch.nn.modules.linear.Identity")
    inner = save("qwen3", tmp_path).rename(outer / "0_Transformer")
    for path in (whole, inner):
        (path / "sentence_bert_config.json").write_text('{"max_seq_length": 50}')
    (outer / "config.json").write_text('{"__version__": "0.2.3"}')
    with pytest.raises(CheckpointError, match=rf"with its weights in {inner}: give that folder"):
        load(outer)
    wanted = load(whole, max_length=64).embed(TEXTS[:3])
    assert pooling_of(inner) == replace(pooling_of(whole), steps=(outer / "2_Dense",))
    assert torch.equal(load(inner, max_length=64).embed(TEXTS[:3]), wanted)
    quantize(open_checkpoint(inner), out := tmp_path / "out", Silent(), "q8")
    assert pooling_of(out) == replace(pooling_of(whole), steps=(out / "2_Dense",))
    assert json.loads((out / "modules.json").read_text())[0]["path"] == ""
    (outer / "modules.json").write_text("no JSON")
    assert not pooling_of(inner).is_told


def test_spaces_around_a_text_go_as_in_sentence_transformers(tmp_path):
    path = save_word_model(tmp_path)
    save_modules(path, ["Transformer", "Pooling"])
    engine = load(path, dtype="float32")
    assert torch.equal(engine.embed("  w1 w2 \n"), engine.embed("w1 w2"))
