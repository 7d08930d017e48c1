"""Adapters that are refused: each with what is wrong, and nothing is applied in part."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.peft_adapters import save_adapter
from tests.tiny_models import prompt, save
from tokenmill import CapacityError, CheckpointError, ConfigError, load

TOKENS = prompt(9)


@pytest.fixture(scope="module")
def engine(models):
    with load(save("llama", models), dtype="float32", program="eager", scheme="dense") as engine:
        yield engine


@pytest.fixture
def adapter(tmp_path):
    save_adapter("llama", tmp_path / "adapter", target_modules=["q_proj", "up_proj"])
    return tmp_path / "adapter"


def change(folder, **fields):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def rename(folder, make):
    """Give tensors other names, or leave out those of which nothing is made."""
    path = folder / "adapter_model.safetensors"
    tensors = {new: tensor for name, tensor in load_file(path).items() if (new := make(name)) is not None}
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def refused(engine, folder, *said, error=CheckpointError):
    before = engine.logits(TOKENS)
    with pytest.raises(error) as caught:
        engine.load_adapter("x", folder)
    for each in said:
        assert each in str(caught.value), str(caught.value)
    assert "x" not in engine.adapters
    assert torch.equal(engine.logits(TOKENS), before)


REFUSED = {
    "peft_type": "IA3",
    "init_lora_weights": "pissa",
    "alora_invocation_tokens": [1, 2],
    "layer_replication": [[0, 2], [1, 2]],
    "use_qalora": True,
    "use_bdlora": {"target_modules_bd_a": []},
    "arrow_config": {"top_k": 3},
    "kasa_config": {"beta": 1},
    "velora_config": {"scale": 1},
    "monteclora_config": {"num_samples": 2},
    "megatron_config": {"hidden_size": 3},
    "bias": "some",
    "r": 0,
    "lora_alpha": "8",
    "a_key_of_later_days": True,
    "rank_pattern": {"q_proj(": 3},
    "alpha_pattern": {"(a*)*b": 3},
    "trainable_token_indices": [3, 3],
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_changes_the_arithmetic_otherwise_is_named(field, engine, adapter):
    refused(engine, change(adapter, **{field: REFUSED[field]}), field)


def test_what_says_nothing_is_passed_over(engine, adapter):
    """Unknown keys that are empty, and all that only a training reads."""
    change(adapter, a_key_of_later_days=None, another=[], third=False, lora_dropout=0.3, revision="main")
    engine.load_adapter("passed over", adapter)
    engine.unload_adapter("passed over")


def test_names_of_another_tree_are_refused(engine, adapter):
    """PEFT warns and applies nothing (vLLM 34186): the output would be the model's own."""
    rename(adapter, lambda name: name.replace("base_model.model.model.", "base_model.model.transformer.h."))
    refused(engine, adapter, "unexpected", "transformer.h.layers.0.self_attn.q_proj")


def test_names_without_the_prefix_are_refused(engine, adapter):
    rename(adapter, lambda name: name.removeprefix("base_model.model."))
    refused(engine, adapter, "base_model.model.MODULE", "model.layers.0.self_attn.q_proj.lora_A.weight")


def test_a_module_that_the_model_lacks_is_refused(engine, adapter):
    """Where no target fits, others give the model's own output (vLLM 55193)."""
    rename(adapter, lambda name: name.replace("q_proj", "query"))
    refused(engine, change(adapter, target_modules=["query", "up_proj"]), "self_attn.query")


def test_an_adapter_of_parts_that_no_text_passes_is_refused(models, tmp_path):
    """It would not be applied."""
    save_adapter("gemma3", tmp_path / "adapter", target_modules=r".*vision_tower.*(q_proj|v_proj)")
    with load(save("gemma3", models), dtype="float32", program="eager", scheme="dense") as engine:
        refused(engine, tmp_path / "adapter", "changes nothing of this gemma3_text model's text")


def test_an_adapter_of_another_base_is_refused_with_the_shapes(engine, adapter):
    path = adapter / "adapter_model.safetensors"
    wider = {name: torch.cat([each, each], 1) if "lora_A" in name else each for name, each in load_file(path).items()}
    save_file(wider, path)
    shapes = "model.layers.0.self_attn.q_proj [4, 96] and [48, 4] where [R, 48] and [48, R] go"
    refused(engine, adapter, "does not fit this llama model", "4 misshapen", shapes)


def test_a_layer_that_the_model_lacks_is_refused(engine, adapter):
    rename(adapter, lambda name: name.replace("layers.1.", "layers.7."))
    refused(engine, adapter, "unexpected: model.layers.7.mlp.up_proj")


@pytest.mark.parametrize("kind", ["lora_A", "lora_B"])
def test_half_of_a_pair_is_refused(kind, engine, adapter):
    rename(adapter, lambda name: None if f"layers.0.self_attn.q_proj.{kind}" in name else name)
    refused(engine, adapter, "is not whole", "1 missing: model.layers.0.self_attn.q_proj")


def test_another_rank_than_the_config_says_is_refused(engine, adapter):
    refused(engine, change(adapter, r=5), "has rank 4", "says rank 5")


def test_a_module_that_the_config_leaves_out_is_refused(engine, adapter):
    """PEFT passes its factors over."""
    refused(engine, change(adapter, target_modules=["q_proj"]), "target_modules leave out", "up_proj")
    refused(engine, change(adapter, target_modules=r".*\.q_proj"), "target_modules leave out", "up_proj")
    refused(engine, change(adapter, target_modules=None), "target_modules leave out", "proj")
    both = ["q_proj", "up_proj"]
    refused(engine, change(adapter, target_modules=both, exclude_modules=["up_proj"]), "exclude_modules leave out")
    refused(engine, change(adapter, exclude_modules=r".*1\.mlp\.up_proj"), "exclude_modules leave out", "layers.1")
    refused(engine, change(adapter, exclude_modules=None, layers_to_transform=[0]), "layers_to_transform", "layers.1.")


@pytest.mark.parametrize("targets", [r"model\.layers\.\d\.(self_attn|mlp)\.(q|up)_proj", "(?:(a|.)*_proj){1,2}" * 3])
def test_an_expression_that_names_the_modules(targets, engine, adapter):
    """One that may take years to match is not asked."""
    engine.load_adapter("named", change(adapter, target_modules=targets, exclude_modules="(a*)*"))
    engine.unload_adapter("named")


@pytest.mark.parametrize("field", ["use_dora", "lora_bias"])
def test_a_config_that_contradicts_its_tensors_is_refused(field, engine, adapter, tmp_path):
    """PEFT starts missing ones anew, and passes over those that the config does not have."""
    refused(engine, change(adapter, **{field: True}), f"{field} is True", "_proj has no ")
    save_adapter("llama", tmp_path / "other", target_modules=["q_proj"], **{field: True})
    refused(engine, change(tmp_path / "other", **{field: False}), f"{field} is False", "q_proj has a ")


@pytest.mark.parametrize("program", ["eager", "native"])
@pytest.mark.parametrize(
    "shape", [((16, 48, 1), (48, 1, 16)), ((1, 4, 48), (1, 48, 4)), ((4, 48, 1, 1), (48, 4, 1, 1))]
)
def test_factors_that_are_no_matrices_are_refused(shape, program, models, adapter):
    path = adapter / "adapter_model.safetensors"
    tensors = dict(load_file(path))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    tensors |= {name.format(each): torch.zeros(size) for each, size in zip("AB", shape, strict=True)}
    save_file(tensors, path)
    with load(save("llama", models), dtype="float32", program=program, scheme="dense") as engine:
        refused(engine, adapter, "1 misshapen: model.layers.0.self_attn.q_proj", "no [R, I] and [O, R]")


def test_tensors_that_change_nothing_there_are_refused(engine, adapter):
    path = adapter / "adapter_model.safetensors"
    tensors = dict(load_file(path))
    q = "base_model.model.model.layers.0.self_attn.q_proj."
    wrong = {"lora_embedding_A": (4, 48), "lora_embedding_B": (48, 4)}
    save_file(tensors | {q + each: torch.zeros(size) for each, size in wrong.items()}, path)
    refused(engine, adapter, "1 unexpected: model.layers.0.self_attn.q_proj (a, b, embedding_a, embedding_b)")


def test_rows_of_a_matrix_that_is_no_head_are_refused(engine, tmp_path):
    tokens = {"model.layers.0.self_attn.q_proj": [1, 2]}
    save_adapter("llama", tmp_path / "a", target_modules=["v_proj"], trainable_token_indices=tokens)
    refused(engine, tmp_path / "a", "unexpected: model.layers.0.self_attn.q_proj (tokens)")


def test_an_embedding_that_norms_its_rows_takes_no_factors(models, tmp_path):
    """Muse Glimmer's norm is inside of the module, so PEFT adds behind it."""
    save_adapter("muse_glimmer_text", tmp_path / "a", target_modules=["embed_tokens"])
    with load(save("muse_glimmer_text", models), dtype="float32", program="eager", scheme="dense") as engine:
        refused(engine, tmp_path / "a", "unexpected: model.embed_tokens: the embedding of this family norms its rows")


def test_a_file_without_tensors_is_refused(engine, adapter):
    save_file({}, adapter / "adapter_model.safetensors")
    refused(engine, adapter, "changes nothing")


@pytest.mark.parametrize("tensor", [torch.eye(4).to_sparse(), torch.empty(4, 4, device="meta")])
def test_tensors_without_numbers_are_refused(tensor, engine, adapter):
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({"base_model.model.x.lora_A.weight": tensor}, adapter / "adapter_model.bin")
    refused(engine, adapter, "adapter_model.bin")


def test_a_norm_of_another_size_or_with_a_bias_is_refused(engine, tmp_path):
    save_adapter("llama", tmp_path / "a", target_modules=["q_proj"], modules_to_save=["input_layernorm"])
    path, name = tmp_path / "a" / "adapter_model.safetensors", "base_model.model.model.layers.{}.input_layernorm.{}"
    tensors = load_file(path)
    tensors[name.format(0, "weight")] = tensors[name.format(0, "weight")][:-1].clone()
    tensors[name.format(1, "bias")] = tensors[name.format(1, "weight")].clone()
    save_file(tensors, path)
    said = (
        "1 unexpected: model.layers.1.input_layernorm (bias)",
        "model.layers.0.input_layernorm (weight) [47] where [48] goes",
    )
    refused(engine, tmp_path / "a", *said)


def test_norms_that_are_the_models_own_are_left_out(engine, models, tmp_path):
    """As PEFT saves them where a training has not changed them."""
    save_adapter("llama", tmp_path / "a", target_modules=["q_proj"], modules_to_save=["input_layernorm"])
    path, own = tmp_path / "a" / "adapter_model.safetensors", load_file(save("llama", models) / "model.safetensors")
    tensors = {name: own.get(name.removeprefix("base_model.model."), each) for name, each in load_file(path).items()}
    save_file(tensors, path)
    assert not engine.load_adapter("own", tmp_path / "a").norms
    engine.unload_adapter("own")


def test_numbers_that_are_not_finite_are_refused(engine, adapter):
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, path)
    refused(engine, adapter, "not finite")


def test_a_rank_above_the_limit_is_refused(models, adapter):
    with load(save("llama", models), program="eager", max_lora_rank=3) as engine:
        refused(engine, adapter, "rank 4", "the limit is 3", "max_lora_rank")


def test_one_adapter_more_than_the_limit_is_refused(models, adapter):
    with load(save("llama", models), program="eager", max_loras=1) as engine:
        engine.load_adapter("a", adapter)
        with pytest.raises(CapacityError, match="adapters: 2 needed, 1 available; change max_loras"):
            engine.load_adapter("b", adapter)
        engine.load_adapter("a", adapter, replace=True)


def test_files_that_are_damaged_or_missing_are_named(engine, adapter, tmp_path):
    refused(engine, tmp_path / "nowhere", "neither a directory with an adapter_config.json nor a GGUF file")
    whole = (adapter / "adapter_model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(engine, adapter, "damaged or no safetensors file")
    (adapter / "adapter_model.safetensors").unlink()
    refused(engine, adapter, "adapter_model.safetensors is not there")
    (adapter / "adapter_config.json").write_text('{"r": 4, "r": 5}')
    (adapter / "adapter_model.safetensors").write_bytes(whole)
    refused(engine, adapter, "'r' stands twice")
    (adapter / "adapter_config.json").unlink()
    refused(engine, adapter, "adapter_config.json is not there")


def test_a_folder_of_adapters_says_which_there_are(engine, adapter):
    (adapter.parent / "several").mkdir()
    adapter.rename(adapter.parent / "several" / "first")
    refused(engine, adapter.parent / "several", "there are adapters in its folders first")


def test_a_pickle_that_holds_more_than_tensors_is_refused(engine, adapter):
    """Nothing that comes with a file is executed; one of tensors alone, as PEFT wrote it, is read."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({**tensors, "x": Path("x")}, adapter / "adapter_model.bin")
    refused(engine, adapter, "holds more than tensors")
    torch.save(tensors, adapter / "adapter_model.bin")
    engine.load_adapter("bin", adapter)
    engine.unload_adapter("bin")


@pytest.mark.parametrize("given", ["a", "a=", "=b", "a=b,a=c"])
def test_modules_that_are_no_pairs_are_refused(given, models):
    with pytest.raises(ConfigError, match="lora_modules"):
        load(save("llama", models), program="eager", lora_modules=given)
