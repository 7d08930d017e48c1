"""Every family that llama.cpp has, written as GGUF and read again; the keys that its converter writes.

converted_keys.json is the metadata that llama.cpp's convert_hf_to_gguf.py (of the source of llama-cpp-python 0.3.36)
writes for these models, where tokenmill reads the same model from the file; benchmarks/gguf_families.py records it, and
has llama.cpp compute the text of our files.
"""

import json
import math
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import gguf
import pytest
import torch
import transformers

from tests.gguf_files import with_tensors
from tests.gguf_models import numbers_of
from tests.tiny_models import FAMILY_NAMES, HYBRIDS, KINDS, TINY, build, prompt
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import architectures, find_family, read_config
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.config import read_gguf_config
from tokenmill.weights.gguf.header import Header, TensorInfo, read_header
from tokenmill.weights.names import match_tensors
from tokenmill.weights.relaid import in_hugging_face_layout
from tokenmill.weights.write.convert import weights_of
from tokenmill.weights.write.gguf_metadata import metadata_of
from tokenmill.weights.write.quantize import quantize

RECORDED = json.loads(Path(__file__).with_name("converted_keys.json").read_text())
KEPT = ("gemma3", "mistral3")  # whose text part is another family
FAMILIES = [name for name in FAMILY_NAMES if TINY[name][0] in KEPT or find_family({"model_type": TINY[name][0]}).gguf]
IN_OTHER_WORDS = "granitemoehybrid glm4 glm kimi_k25 apertus hunyuan_v1_dense qwen3_vl_moe falcon_h1".split()
"""The file has numbers that are multiplied, or other tensors, or llama.cpp has a constant for a key."""
COMPUTED = (*KINDS, *HYBRIDS, "gemma3", "gemma3n_text", "gemma4_text", *IN_OTHER_WORDS)
"""Those between them have every kind of tensor, and a text part; of the others what is read is compared."""
LONG = pytest.mark.long
FEW = {"exaone4": {"num_hidden_layers": 4}}  # the number by which llama.cpp knows a model does not matter here
# What the converter writes that llama.cpp does not use for the architecture or family, or otherwise than the config
# has it.
SKIPPED = {
    "chatglm": "context_length",
    # A context of 2^20 where there is no rope, and a shared expert where there are no experts.
    "granitehybrid": "context_length expert_shared_feed_forward_length",
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), "context_length rope.dimension_count"),  # likewise
    "hunyuan-dense": "context_length rope.scaling.original_context_length",
    "nemotron": "attention.layer_norm_rms_epsilon",
    "deepseek2": "expert_group_used_count",  # where no groups are chosen
    "kimi-linear": "attention.value_length",  # of a head, which says nothing of a row
    "laguna": "rope.dimension_count_swa rope.freq_base_swa",  # also where no layer has a window
    "phi2": "feed_forward_length",
    "solar_open": "feed_forward_length",  # of MLPs that no layer has
    **dict.fromkeys(("qwen35", "qwen35moe"), "rope.dimension_sections"),  # of which a small head has fewer
    "phi3": "rope.scaling.original_context_length",  # of two lists of factors, which those models do not have
}
# What llama.cpp takes where these keys are absent.
ABSENT = {
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "nextn_predict_layers": 0,
}


def plain(config: Any) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False))


@cache
def written(name: str, folder: Path) -> tuple[Path, Path]:
    """A model's directory, and the GGUF file that is made of it."""
    directory, file = folder / name, folder / f"{name}.gguf"
    build(*numbers_of(name, **FEW.get(name, {}))).save_pretrained(directory)
    quantize(open_checkpoint(directory), file, Silent(), "none", head="none", export="gguf")
    return directory, file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in COMPUTED])
def test_a_file_has_the_config_and_the_tensors_that_it_was_made_of(folder, name):
    """Read by the names by which an engine reads it."""
    source, found = (open_checkpoint(path) for path in written(name, folder))
    again = in_hugging_face_layout(found)
    assert dict(again.shapes) == weights_of(source)
    for label in again.shapes:
        assert torch.allclose(again.read(label), source.read(label), rtol=1e-6, atol=1e-6), label
    configs = [replace(read_config(each.config), family="", dtype="float32") for each in (source, found)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", [name if name in COMPUTED else pytest.param(name, marks=LONG) for name in FAMILIES])
def test_a_file_is_the_model_that_it_was_made_of(folder, name):
    directory, file = written(name, folder)
    settings = {"program": "eager", "scheme": "dense", "dtype": "float32", "threads": 1, "max_length": 48}
    ids = prompt(24)
    logits = [load(path, **settings).logits(ids) for path in (file, directory)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "mistral3-mistral"])  # which we call llama
def test_the_keys_are_those_of_llama_cpps_converter(name):
    kind, numbers = numbers_of(name)
    model = read_config(plain(transformers.AutoConfig.for_model(kind, **numbers)))
    arch = RECORDED[name]["general.architecture"]
    absent = ABSENT | dict.fromkeys(("attention.key_length", "attention.value_length"), model.head_dim)
    found = {f"{arch}.{key}": value for key, value in absent.items()} | metadata_of(model)
    skipped = {f"{arch}.{key}" for key in ("vocab_size", *f"{SKIPPED.get(arch, '')} {SKIPPED.get(kind, '')}".split())}
    told = {key: value for key, value in RECORDED[name].items() if key not in skipped}
    assert not {key: (value, found.get(key)) for key, value in told.items() if not same(value, found.get(key))}


def same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-6)
    return value == other


@pytest.mark.parametrize("name", ["stablelm-parallel", "cohere-norms", "qwen2_moe", "gpt_oss"])
def test_types_that_llama_cpp_wants(tmp_path, name):
    """Norms with weights for each head, routers, gates of shared experts and biases of experts are F32."""
    kind, numbers = numbers_of(name.replace("-norms", ""))
    more = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    more |= {"use_qk_norm": True} if name == "cohere-norms" else {}
    more |= {"head_dim": 16} if "head_dim" in numbers else {}
    more |= {key: 32 for key in ("moe_intermediate_size", "shared_expert_intermediate_size") if key in numbers}
    build(kind, {**numbers, **more}).bfloat16().save_pretrained(tmp_path / "model")
    quantize(open_checkpoint(tmp_path / "model"), tmp_path / "x.gguf", Silent(), "q8", export="gguf")
    infos = read_header(tmp_path / "x.gguf").tensors
    kinds = {label.rpartition("blk.0.")[2]: info.type.name for label, info in infos.items() if "blk.1." not in label}
    small = ("norm.weight", "norm.bias", "gate_inp.weight", "gate_inp_shexp.weight", ".bias", "sinks.weight")
    for label, found in kinds.items():
        wanted = "F32" if label.endswith(small) else "BF16" if label == "token_embd.weight" else "Q8_0"
        assert found == wanted, label


def test_every_architecture_has_a_record():
    kept = {RECORDED[name]["general.architecture"] for name in RECORDED}
    unread = {"gptneox", "gpt2"}  # whose configs the converter does not read
    unread |= {"gemma3n"}  # whose keys were read in the converter's source, which was not run
    unread |= {
        "bert",
        "jina-bert-v2",
        "nomic-bert",
        "modern-bert",
        "eurobert",
        "gemma-embedding",
    }  # tests/model/test_encoder_files.py
    seeing = {
        "qwen2vl",
        "qwen3vl",
        "qwen3vlmoe",
    }  # held by tests/model/test_qwen_vl.py: the converter wants their images
    assert kept >= architectures().keys() - unread - seeing


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gemma2-uncapped", "it has no key for attention_softcap = None, read as 50.0"),
        ("olmo2-bias", "one without a bias behind attention, which llama.cpp requires"),
        ("gpt_oss-departures", "one with biases, which llama.cpp requires"),
        ("ernie4_5-bias", "one without biases in the MLP, which llama.cpp requires"),
        ("phi-departures", "one without norms of Q and K, which llama.cpp requires"),
        ("cohere-departures", "one whose head is its embedding, which llama.cpp requires"),
        ("granitemoehybrid-experts", "it has no key for ropes"),
        ("ernie4_5_moe-departures", "it has no key for expert_layers"),
        ("helium", "for a GGUF file, a family for which llama.cpp has an architecture"),
    ],
)
def test_what_llama_cpp_cannot_hold_is_refused(tmp_path, name, message):
    kind, numbers = numbers_of(name)
    if name == "gemma2-uncapped":
        numbers = {**numbers, "query_pre_attn_scalar": 12}
    build(kind, numbers).save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        quantize(open_checkpoint(tmp_path / "model"), tmp_path / "x.gguf", Silent(), "none", head="none", export="gguf")


@pytest.mark.parametrize("count", [1, 3])
def test_layers_that_predict_further_tokens_are_no_layers_of_the_model(count, folder):
    """llama.cpp counts them among the layers, and a key says how many they are. tests/engine/test_mtp.py reads them."""
    _, file = written("glm4_moe", folder)
    shapes = {"nextn.eh_proj": (48, 96), "attn_q": (72, 48)}
    more = {
        f"blk.{at}.{part}.weight": torch.zeros(shape) for at in range(3, 3 + count) for part, shape in shapes.items()
    }
    keys = {"glm4moe.block_count": 3 + count, "glm4moe.nextn_predict_layers": count}
    again = with_tensors(file, folder / "further.gguf", more, keys)
    read = open_checkpoint(again)
    without = read_config(open_checkpoint(file).config)
    assert read_config(read.config) == replace(without, num_mtp=count)
    assert dict(read.shapes) == dict(open_checkpoint(file).shapes)
    assert match_tensors(read, read_config(read.config)).keys() == read.shapes.keys()


def test_keys_and_values_of_all_heads_in_one_tensor(folder):
    """So files of DeepSeek from before April 2025 have them, which llama.cpp computes as it does newer ones."""
    directory, file = written("deepseek_v2", folder)
    new, ranks = open_checkpoint(file), RECORDED["deepseek_v2"]
    tensors = {}
    for layer in range(2):
        keys, values = ([new.read(f"blk.{layer}.attn_{of}_b.weight[{head}]") for head in range(6)] for of in "kv")
        rows = [rows for key, value in zip(keys, values, strict=True) for rows in (key.t(), value)]
        tensors[f"blk.{layer}.attn_kv_b.weight"] = torch.cat(rows)
    head = {
        f"deepseek2.attention.{of}_length": ranks[f"deepseek2.attention.{of}_length_mla"] for of in ("key", "value")
    }
    gone = {f"deepseek2.attention.{of}_length_mla": [] for of in ("key", "value")}
    without = tuple(f"blk.{layer}.attn_{of}_b.weight" for layer in range(2) for of in "kv")
    heads = {"deepseek2.attention.head_count_kv": 6}
    old = open_checkpoint(with_tensors(file, folder / "old.gguf", tensors, head | gone | heads, without))
    source, again = open_checkpoint(directory), in_hugging_face_layout(old)
    assert dict(again.shapes) == weights_of(source)
    assert all(torch.equal(again.read(name), source.read(name)) for name in again.shapes)
    assert read_config(old.config) == read_config(new.config)
    with pytest.raises(CheckpointError, match=r"attn_kv_b.weight \[131, 24\] where \[132, 24\] goes"):
        wrong = {"blk.0.attn_kv_b.weight": torch.zeros(131, 24)}
        open_checkpoint(with_tensors(folder / "old.gguf", folder / "wrong.gguf", wrong, {}, tuple(wrong)))


def test_codes_of_the_keys_of_all_heads_are_read_as_values(folder):
    """They are transposed. Those of values are kept."""
    kind, numbers = numbers_of("minicpm3", kv_lora_rank=32, q_lora_rank=32, hidden_size=96, intermediate_size=96)
    build(kind, numbers).save_pretrained(folder / "wide")
    kinds = quantize(open_checkpoint(folder / "wide"), folder / "wide.gguf", Silent(), "q8", export="gguf")
    assert kinds["attn_kv_b"].count == 2 * 6 * 2  # of two layers the keys and values of six heads
    file = open_checkpoint(folder / "wide.gguf")
    stored = read_header(folder / "wide.gguf").tensors["blk.0.attn_kv_b.weight"]
    assert (stored.shape, stored.type.name) == ((6 * (12 + 16), 32), "Q8_0")
    assert file.read_codes("blk.0.attn_kv_b.weight[k1]") is None
    codes = file.read_codes("blk.0.attn_kv_b.weight[v1]")
    assert torch.equal(codes.values(), file.read("blk.0.attn_kv_b.weight[v1]"))
    settings = {"program": "eager", "dtype": "float32", "threads": 1, "max_length": 48}
    models = (load(folder / "wide.gguf", scheme=scheme, **settings) for scheme in ("file", "dense"))
    torch.testing.assert_close(*(model.logits(prompt(24)) for model in models), rtol=0.02, atol=0.02)


EXAMPLES = int(os.environ.get("TOKENMILL_EXAMPLES", "20"))
NUMBERS = [0, 1, 2, 3, 7, -1, 1 << 40, 0.0, 0.5, 1e-9, -2.5, math.inf, math.nan]
ODD = [*NUMBERS, True, False, "", "yarn", [], [1], [0.5] * 4, ["x"], [True] * 4, None]


@pytest.mark.parametrize("name", RECORDED)
def test_whatever_the_keys_say_is_read_or_refused(name):
    """Mutated metadata gives a model or an error in one line."""
    random, recorded = Random(name), RECORDED[name]
    shapes = {
        "token_embd.weight": (211, 48),
        "blk.0.ffn_up.weight": (80, 48),
        "blk.1.ffn_down_exps.weight": (5, 48, 40),
    }
    shapes |= {f"blk.{layer}.attn_q.weight": (48, 48) for layer in range(2, 64)}
    lists = {"rope_factors_long.weight": [1.0, 2.0], "rope_factors_short.weight": [1.0]} if "phi3" in name else {}
    arch, refused = recorded["general.architecture"], 0
    for _ in range(EXAMPLES):
        layers = random.choice([2, 46, 62, 64])
        metadata = {**recorded, f"{arch}.block_count": layers}
        for _ in range(random.randint(1, 3)):
            metadata[random.choice([*recorded, f"{arch}.attention.scale", "xielu.beta"])] = random.choice(ODD)
        kept = dict(list(shapes.items())[: 1 + layers])
        header = Header(metadata, {label: info(label, shape) for label, shape in kept.items()}, 0)
        try:
            read_config(read_gguf_config(Path("x.gguf"), header, lists, warn=lambda *_: None))
        except CheckpointError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused


def info(label: str, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(label, shape, gguf.GGMLQuantizationType.F32, 0, 0)
