"""Law 1 of the names and layouts in which other programs write a model: the logits are those of transformers.

transformers 5 writes the names of the published files, and with `save_original_format=False` those of its own modules,
which a state_dict has too. Bounds are those of test_law_01_families.py.
"""

import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.laws.test_law_01_families import check_logits, expected_logits
from tests.marks import each, needs_native
from tests.tiny_models import FAMILY_NAMES, KINDS, TINY, auto_class, prompt, reference, save
from tokenmill import load
from tokenmill.hub.progress import Silent
from tokenmill.model.families import find_family
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import convert
from tokenmill.weights.write.quantize import quantize

SEEING = [name for name, (kind, _) in TINY.items() if find_family({"model_type": kind}).text is not None]
MLX_ALONE = ("gemma4_text", "gemma4_unified_text")  # whose second names are of MLX, and not of transformers
PACKED = [
    name
    for name, (kind, _) in TINY.items()
    if find_family({"model_type": kind}).also and name not in SEEING and kind not in MLX_ALONE
]
"""The models of text whose published names transformers' own modules do not have. Of the others law 1 reads the same
names in one file, so that here those of KINDS are enough.
"""
OWN = {"save_original_format": False, "max_shard_size": "20KB"}


def logits(path, tokens, **settings):
    with load(path, **{"dtype": "float32", "program": "eager", "scheme": "dense", **settings}) as engine:
        return engine.logits(tokens)


def shapes_of(path):
    return {name.removeprefix("model."): shape for name, shape in open_checkpoint(path).shapes.items()}


def long_where(names, is_long):
    """What a departure's names prove, others prove by default."""
    return [pytest.param(name, marks=pytest.mark.long if is_long(name) else ()) for name in names]


@pytest.mark.parametrize(
    "name",
    # A conversion reads the names of a departure, too.
    long_where([name for name in TINY if name in (*PACKED, *SEEING, *KINDS)], lambda name: name not in FAMILY_NAMES),
)
def test_names_of_transformers_own_modules_in_shards(name, tmp_path):
    path = save(name, tmp_path, **OWN)
    assert len(list(path.glob("*.safetensors"))) > 1
    check_logits(logits(path, prompt(20)), name, prompt(20))


@pytest.mark.parametrize("name", each(FAMILY_NAMES))
def test_a_state_dict_in_a_bin_file(name, tmp_path):
    """Wrapped, as FSDP and torch.compile leave the names."""
    model = reference(name)
    model.config.save_pretrained(tmp_path)
    state = {f"_fsdp_wrapped_module.{label}": tensor for label, tensor in model.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    check_logits(logits(tmp_path, prompt(20)), name, prompt(20))


@pytest.mark.parametrize(
    "names",
    [pytest.param([*FAMILY_NAMES, *PACKED], id="families"), pytest.param(TINY, id="all", marks=pytest.mark.long)],
)
def test_the_families_with_two_names_are_those_of_which_transformers_writes_two(names, models, tmp_path):
    """So that the test of shards compares what it is for. A model that sees has the names of its text part."""
    differ = set()
    for name, kind in ((name, TINY[name][0]) for name in names):
        own = set(shapes_of(save(name, tmp_path, save_original_format=False)))
        differ |= {kind} if own != set(shapes_of(save(name, models))) and name not in SEEING else set()
    assert differ == {TINY[name][0] for name in PACKED}


ALIKE = """granitemoeshared-none gpt_neox-serial deepseek_v2-groups ernie4_5_moe-departures nemotron_h-dense
    lfm2_moe-departures exaone_moe-departures afmoe-departures""".split()
"""Departures without a name that their family has not."""


@pytest.mark.parametrize("name", long_where(PACKED, lambda name: name in ALIKE))
def test_a_converted_directory_has_the_published_names(name, models, tmp_path):
    out = convert(open_checkpoint(save(name, tmp_path, **OWN)), tmp_path / "out", "float32", Silent())
    made_by_hand = {"olmo_hybrid": as_published, "kimi_linear": kimi_as_published}.get(TINY[name][0])
    published = made_by_hand(name, tmp_path / "published") if made_by_hand else save(name, models)
    assert shapes_of(out) == shapes_of(published)
    check_whole(out, name)


OLMO_HYBRID = [name for name, (kind, _) in TINY.items() if kind == "olmo_hybrid"]
"""Models of whose names transformers writes some on other tensors than their authors' converter does."""


def as_published(name, path):
    """The tensors as OLMo-core's converter for Hugging Face names them."""
    config, state = reference(name).config, reference(name).state_dict()
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    for label in [label for label in state if ".layers." in label]:
        start, _, layer, part = label.split(".", 3)
        begin, tensor = f"{start}.layers.{layer}.", state.pop(label)
        is_linear = config.layer_types[int(layer)] == "linear_attention"
        if part == "linear_attn.conv1d.weight":
            pieces = tensor.split([keys, keys, len(tensor) - 2 * keys])
            state |= {
                f"{begin}linear_attn.{role}_conv1d.weight": each for role, each in zip("qkv", pieces, strict=True)
            }
        elif is_linear and part.endswith("layernorm.weight"):
            short = "attention" if part.startswith("input") else "feedforward"
            state[f"{begin}{short}_layer_norm.weight"] = tensor
        else:
            state[label] = tensor
    config.save_pretrained(path)
    head = ["lm_head.weight"] if config.tie_word_embeddings else []
    save_file(
        {label: each.contiguous() for label, each in state.items() if label not in head}, path / "model.safetensors"
    )
    return path


def kimi_as_published(name, path):
    """transformers gives an MLP without experts the name of a mixture, which no published file has."""
    save(name, path.parent / "saved")
    state = load_file(path.parent / "saved" / name / "model.safetensors")
    dense = re.compile(r"block_sparse_moe(?=\.(gate|up|down)_proj)")
    path.mkdir()
    save_file({dense.sub("mlp", label): tensor for label, tensor in state.items()}, path / "model.safetensors")
    shutil.copy(path.parent / "saved" / name / "config.json", path)
    return path


@pytest.mark.parametrize("name", ["kimi_linear", "kimi_linear-departures"])
def test_kimi_linear_as_published(name, tmp_path):
    path = kimi_as_published(name, tmp_path / "model")
    check_logits(logits(path, prompt(9)), name, prompt(9))


@pytest.mark.parametrize("name", OLMO_HYBRID)
def test_olmo_hybrid_as_published(name, models, tmp_path):
    path = as_published(name, tmp_path / "model")
    assert shapes_of(path) != shapes_of(save(name, models))
    check_logits(logits(path, prompt(20)), name, prompt(20))
    check_whole(path, name)


@pytest.mark.parametrize("name", SEEING)
def test_a_converted_text_part_is_a_model_of_text(name, models, tmp_path):
    check_whole(convert(open_checkpoint(save(name, models)), tmp_path / "out", "float32", Silent()), name)


def check_whole(out, name):
    """transformers reads what was written, and nothing in it is missing or left over."""
    config = transformers.AutoConfig.from_pretrained(out)
    model, told = auto_class(config).from_pretrained(out, attn_implementation="eager", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    with torch.no_grad():
        torch.testing.assert_close(model(torch.tensor([prompt(9)])).logits[0], expected_logits(name, prompt(9)))


@pytest.mark.parametrize("name", ["mixtral", "granitemoe", "qwen3_moe", "gpt_neox"])
@pytest.mark.parametrize("export", ["tokenmill", "gguf"])
def test_exports_are_those_of_the_published_names(name, export, models, tmp_path):
    """Written from either layout, a model gives the same numbers to the bit."""
    suffix = ".gguf" if export == "gguf" else ""
    found = []
    for path in (save(name, models), save(name, tmp_path / "own", **OWN)):
        out = tmp_path / f"{len(found)}{suffix}"
        quantize(open_checkpoint(path), out, Silent(), "q8" if export == "tokenmill" else "none", export=export)
        found.append(logits(out, prompt(9), scheme="q8" if export == "tokenmill" else "dense"))
    assert torch.equal(*found)


@pytest.mark.parametrize("program", ["eager", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("scheme", ["q8", "q4"])
def test_schemes_round_experts_in_one_tensor_as_they_round_several(scheme, program, models, tmp_path):
    paths = save("qwen2_moe", models), save("qwen2_moe", tmp_path, **OWN)
    assert torch.equal(*(logits(path, prompt(9), scheme=scheme, program=program) for path in paths))
