"""Exports of rounded matrices: GPTQ directories and GGUF files hold the codes of rounding, and the same model."""

import json
import shutil
from dataclasses import fields
from types import SimpleNamespace

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests import gguf_files
from tests.tiny_models import TINY, prompt, save
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.text.gguf_vocab import PROBES
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.relaid import in_hugging_face_layout
from tokenmill.weights.write import convert as module
from tokenmill.weights.write.quantize import quantize

Kind = gguf.GGMLQuantizationType
TYPES = {("q4", False): Kind.Q4_1, ("q4", True): Kind.Q4_0, ("q8", False): Kind.Q8_0}
IN_EACH_TYPE = ("llama", "mixtral", "gpt2")
"""Plain rows, experts, and matrices that are turned; the others have one of the types each by default."""
SAID_ELSEWHERE = {"family", "dtype", "codes", "code_bits", "compact_bits", "embedding_bits", "eos_token_ids"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Tiny models in Hugging Face layout whose rows are multiples of 32, with a tokenizer."""
    folder = tmp_path_factory.mktemp("sources")

    def make(name):
        path = folder / name
        if not path.exists():
            path.mkdir()
            config, tensors = gguf_files.tiny(name)
            (path / "config.json").write_text(json.dumps(config))
            save_file(tensors, path / "model.safetensors", {"format": "pt"})
            tokenizer = tokenizer_from_gguf(gguf_files.vocabulary())
            tokenizer.backend.save(str(path / "tokenizer.json"))
            names = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_texts}
            (path / "tokenizer_config.json").write_text(json.dumps(names))
        return path

    return make


@pytest.fixture(scope="module")
def llama(models):
    return save("llama-head-dim", models)


def export(source, out, how, **settings):
    return quantize(open_checkpoint(source), out, Silent(), export=how, **settings)


def without_codes(source, out):
    """A GGUF file in the model's own floating type."""
    return quantize(open_checkpoint(source), out, Silent(), scheme="none", head="none", export="gguf")


def in_words_of_hugging_face(path):
    return in_hugging_face_layout(open_checkpoint(path))


def entries(path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def same_config(one, other, but=()) -> None:
    for entry in fields(one):
        if entry.name not in SAID_ELSEWHERE | set(but):
            assert getattr(one, entry.name) == getattr(other, entry.name), entry.name


# ---- GGUF


CODED = [
    pytest.param(name, *way, marks=() if name in IN_EACH_TYPE or number % 3 == place else pytest.mark.long)
    for number, name in enumerate(name for name in gguf_files.TINY if name != "gptneox-serial")
    for place, way in enumerate(TYPES)
]


@pytest.mark.parametrize(("name", "scheme", "symmetric"), CODED)
def test_a_gguf_file_holds_the_codes_and_the_model(sources, tmp_path, name, scheme, symmetric):
    export(sources(name), tmp_path / "out.gguf", "gguf", scheme=scheme, symmetric=symmetric)
    source, again = open_checkpoint(sources(name)), in_words_of_hugging_face(tmp_path / "out.gguf")
    assert dict(again.shapes) == dict(source.shapes)
    bits, kept = int(scheme[1]), 0
    for label, shape in source.shapes.items():
        given, found = source.read(label), again.read_codes(label)
        if found is None:
            assert torch.equal(again.read(label), given)
            continue
        rows = given.t() if found.num_rows != shape[0] or name.startswith("gpt2") else given
        size = 8 if label in ("lm_head.weight", "embed_out.weight") else bits
        wanted = round_to_nearest(rows, size, 32, "symmetric" if symmetric else "minimum")
        assert torch.equal(found.unpacked().codes, wanted.codes)
        assert torch.equal(found.scales, wanted.scales)
        assert found.minimums is None or torch.equal(found.minimums, wanted.minimums)
        kept += 1
    assert kept > 4
    types = {info.type for info in read_header(tmp_path / "out.gguf").tensors.values()}
    assert TYPES[scheme, symmetric] in types
    same_config(read_config(source.config), read_config(again.config))
    assert entries(tmp_path) == ["out.gguf"]


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
def test_a_gguf_file_says_what_its_codes_say(sources, tmp_path, name):
    """The program's logits against those of the rounded values in floating point, in the source's own layout."""
    export(sources(name), tmp_path / "out.gguf", "gguf")
    rounded = in_words_of_hugging_face(tmp_path / "out.gguf")
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in sources(name).iterdir():
        (plain / file.name).write_bytes(file.read_bytes())
    tensors = {label: rounded.read(label).contiguous() for label in rounded.shapes}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    settings = {"program": "eager", "scheme": "dense", "dtype": "float32", "threads": 1}
    ids = prompt(20)
    assert torch.equal(load(tmp_path / "out.gguf", **settings).logits(ids), load(plain, **settings).logits(ids))


UNSAYABLE = {"llama-dynamic", "qwen2-window", "gpt2-inner", "gpt_bigcode-mha", "gpt_neox-serial"}
OLDER = "llama mistral mixtral qwen2 qwen3 gemma gpt_neox gpt2 gpt_bigcode".split()
"""Families of which every departure is written here; tests/weights/gguf/test_families.py has all of them."""


@pytest.mark.parametrize("name", [name for name in TINY if TINY[name][0] in OLDER and name not in UNSAYABLE])
def test_a_gguf_file_in_floating_point_is_the_same_model(models, tmp_path, name):
    """Every departure that GGUF can say, with rows of 48, which codes cannot have."""
    without_codes(save(name, models), tmp_path / "out.gguf")
    source, again = open_checkpoint(save(name, models)), in_words_of_hugging_face(tmp_path / "out.gguf")
    for label in source.shapes:
        # Of Gemma's norms the file has 1 + weight, which rounds what has more than bfloat16's 8 bits.
        atol = 1e-7 if name.startswith("gemma") and "norm" in label else 0
        torch.testing.assert_close(again.read(label), source.read(label), rtol=0, atol=atol)
    same_config(read_config(source.config), read_config(again.config), but=("rope",) if "llama3" in name else ())
    settings = {"program": "eager", "scheme": "dense", "dtype": "float32", "threads": 1}
    ids = prompt(40)
    logits = [load(path, **settings).logits(ids) for path in (tmp_path / "out.gguf", save(name, models))]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-dynamic", "no key for rope = .*kind='dynamic'"),
        ("qwen2-window", r"no key for windows = \(None, 5\), read as \(None, None\)"),
        ("gpt2-inner", "no key for attention_scale = 1.0"),
        ("gpt_bigcode-mha", "head_count_kv = 6 is not implemented: only 1"),
        ("gpt_neox-serial", "one with biases, which llama.cpp requires"),
    ],
)
def test_what_gguf_has_no_key_for_is_refused(models, tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        without_codes(save(name, models), tmp_path / "out.gguf")
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("numbers", "warning"),
    [
        ({"attention_factor": 0.9}, "llama.cpp ignores {'attention_factor': 0.9} of YaRN"),
        ({"mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 20.0}, "'beta_fast': 20.0} of YaRN"),
        ({"attn_factor": 0.8782488562869419, "beta_fast": 32, "attention_factor": None}, ""),
    ],
)
def test_yarn_is_the_same_from_a_gguf_file_and_llama_cpps_own_is_told(models, tmp_path, caplog, numbers, warning):
    path = shutil.copytree(save("llama-yarn", models), tmp_path / "yarn")
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] |= numbers
    (path / "config.json").write_text(json.dumps(config))
    without_codes(path, tmp_path / "out.gguf")
    told = [message for message in caplog.messages if message.startswith("llama.cpp ignores")]
    assert len(told) == bool(warning) and warning in "".join(told)
    have, found = read_config(config).rope, read_config(open_checkpoint(tmp_path / "out.gguf").config).rope
    assert dict(found.scaling) == pytest.approx(dict(have.scaling), rel=1e-6)


def test_a_tied_embedding_becomes_codes_when_it_is_asked_for(sources, tmp_path):
    export(sources("llama-tied"), tmp_path / "plain.gguf", "gguf")
    export(sources("llama-tied"), tmp_path / "q8.gguf", "gguf", head="q8")
    assert read_header(tmp_path / "plain.gguf").tensors["token_embd.weight"].type == Kind.F32
    assert read_header(tmp_path / "q8.gguf").tensors["token_embd.weight"].type == Kind.Q8_0
    again, source = in_words_of_hugging_face(tmp_path / "q8.gguf"), open_checkpoint(sources("llama-tied"))
    wanted = round_to_nearest(source.read("model.embed_tokens.weight"), 8)
    assert torch.equal(again.read_codes("model.embed_tokens.weight").codes, wanted.codes)


def test_the_vocabulary_is_the_same_tokenizer(sources, tmp_path):
    export(sources("llama"), tmp_path / "out.gguf", "gguf", scheme="none")
    have, found = open_checkpoint(sources("llama")).tokenizer(), open_checkpoint(tmp_path / "out.gguf").tokenizer()
    for text in (*PROBES, "the<|endoftext|> end"):
        assert found.encode(text) == have.encode(text)
    assert found.eos_token_ids == have.eos_token_ids


def test_the_vocabulary_of_another_gguf_file_is_copied(sources, tmp_path):
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    gguf_files.write(first, "qwen3", metadata={"tokenizer.ggml.pre": "qwen2", "tokenizer.chat_template": "{{ 1 }}"})
    export(first, second, "gguf")
    told = [read_header(path).metadata for path in (first, second)]
    kept = [{key: value for key, value in each.items() if key.startswith("tokenizer.")} for each in told]
    assert kept[0] == kept[1]
    assert dict(open_checkpoint(first).shapes) == dict(open_checkpoint(second).shapes)


def test_a_tokenizer_that_splits_in_an_unknown_way_is_refused(sources, tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    for file in sources("llama").iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((path / "tokenizer.json").read_text())
    settings["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"none of the known pre-tokenizers .* splits as it does"):
        export(path, tmp_path / "out.gguf", "gguf")
    assert entries(tmp_path) == ["model"]


# ---- GPTQ


@pytest.mark.parametrize(
    ("scheme", "group", "symmetric"), [("q4", 32, False), ("q4", 64, True), ("q4", 64, False), ("q8", 32, False)]
)
def test_a_gptq_directory_holds_the_codes(sources, tmp_path, scheme, group, symmetric):
    export(sources("llama"), tmp_path / "out", "gptq", scheme=scheme, group=group, symmetric=symmetric)
    source, again = open_checkpoint(sources("llama")), open_checkpoint(tmp_path / "out")
    assert dict(again.shapes) == dict(source.shapes)
    bits = int(scheme[1])
    for label in source.shapes:
        if "proj" not in label:
            assert torch.equal(again.read(label), source.read(label))
            continue
        wanted = round_to_nearest(source.read(label), bits, group, "symmetric" if symmetric else "zero_point")
        found = again.read_codes(label)
        assert torch.equal(found.codes, wanted.codes)
        assert torch.equal(found.values(), wanted.values())
    told = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    wanted = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "lm_head": False}
    assert told == wanted | {"sym": symmetric or bits == 8, "checkpoint_format": "gptq"}


def test_gptq_as_its_documentation_reads_it(sources, tmp_path):
    """By the words themselves: eight codes from the low bits up, zeros stored less one, (code - zero) · scale."""
    export(sources("llama"), tmp_path / "out", "gptq")
    label = "model.layers.0.mlp.down_proj"
    parts = load_file(tmp_path / "out" / "model.safetensors")
    words, zeros, scales, groups = (parts[f"{label}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx"))
    values = open_checkpoint(tmp_path / "out").read(f"{label}.weight")
    for row, column in ((0, 0), (3, 17), (63, 255), (40, 128)):
        code = int(words[column // 8, row]) >> 4 * (column % 8) & 15
        group = int(groups[column])
        zero = (int(zeros[group, row // 8]) >> 4 * (row % 8) & 15) + 1
        assert (code - zero) * float(scales[group, row]) == float(values[row, column])


# ---- what is refused


def test_experts_in_one_tensor_are_not_exported_for_other_engines(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model("granitemoe", vocab_size=64, num_hidden_layers=1, num_local_experts=2, **sizes)
    path = tmp_path / "model"
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    with pytest.raises(ConfigError, match="a family whose files have a tensor for each expert, for a GPTQ export"):
        export(path, tmp_path / "out", "gptq")


@pytest.mark.parametrize(
    ("name", "how", "settings", "message"),
    [
        ("llama", "gguf", {"group": 64}, "group = 64 is not allowed: 32"),
        ("llama", "gptq", {"group": 128}, "group = 128 is not allowed: one that divides the 64 inputs .*: 64, 32"),
        ("llama", "gptq", {"head": "q8"}, "head = 'q8' is not allowed: none: a GPTQ export keeps its head"),
        ("gpt2", "gptq", {}, "this one's are .in, out.. Use export gguf"),
        ("llama", "tokenmill", {"symmetric": True}, "symmetric = True is not allowed: only with export gptq or gguf"),
        ("llama", "tokenmill", {"scheme": "none"}, "scheme = 'none' is not allowed: use one of q4, q8"),
        ("llama", "awq", {}, "export = 'awq' is not allowed: use one of gguf, gptq, tokenmill"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_before_anything_is_read(sources, tmp_path, name, how, settings, message):
    with pytest.raises(ConfigError, match=message):
        export(sources(name), tmp_path / ("out.gguf" if how == "gguf" else "out"), how, **settings)
    assert entries(tmp_path) == []


def test_rows_that_no_block_divides_are_refused(models, tmp_path):
    with pytest.raises(ConfigError, match=r"whose matrices have 32 · n inputs; .* has 48"):
        export(save("llama", models), tmp_path / "out.gguf", "gguf")
    with pytest.raises(ConfigError, match=r"divides the \d+ inputs of .*: none does"):
        export(save("llama", models), tmp_path / "out", "gptq")


def test_a_path_that_is_taken_or_no_gguf_file_is_refused(sources, tmp_path):
    (tmp_path / "out.gguf").write_text("mine")
    with pytest.raises(ConfigError, match="a file that does not exist yet"):
        export(sources("llama"), tmp_path / "out.gguf", "gguf")
    with pytest.raises(ConfigError, match=r"whose name ends in .gguf"):
        export(sources("llama"), tmp_path / "out", "gguf")
    assert (tmp_path / "out.gguf").read_text() == "mine"


@pytest.mark.parametrize("how", ["gguf", "gptq"])
def test_nothing_is_left_behind(sources, tmp_path, monkeypatch, how):
    """Not by a disk that is full, nor by an interrupt in the middle of the tensors."""
    out = tmp_path / ("out.gguf" if how == "gguf" else "out")

    class Stops(Silent):
        def advance(self, done, total):
            if done == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(open_checkpoint(sources("llama")), out, Stops(), export=how)
    assert entries(tmp_path) == []
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CapacityError, match="disk space"):
        export(sources("llama"), out, how)
    assert entries(tmp_path) == []


def test_the_command_says_what_it_wrote(sources, tmp_path, capsys):
    command = ["quantize", str(sources("llama")), "--export", "gguf", "--json", "-o", str(tmp_path / "out.gguf")]
    assert main([*command, "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["export"] == "gguf"
    assert told["num_bytes"] == (tmp_path / "out.gguf").stat().st_size
