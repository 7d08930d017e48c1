"""Exports of rounded matrices: a GPTQ directory and a GGUF file hold the codes that rounding gave, and the same model."""

import json
from dataclasses import fields

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import gguf_files
from tests.tiny_models import FAMILY_NAMES, TINY, prompt, save
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
from tokenmill.weights.write import convert as module
from tokenmill.weights.write.quantize import quantize

Kind = gguf.GGMLQuantizationType
TYPES = {("q4", False): Kind.Q4_1, ("q4", True): Kind.Q4_0, ("q8", False): Kind.Q8_0}
SAID_ELSEWHERE = {"family", "dtype", "codes", "code_bits", "embedding_bits", "eos_token_ids"}


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


def entries(path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def same_config(one, other, but=()) -> None:
    for entry in fields(one):
        if entry.name not in SAID_ELSEWHERE | set(but):
            assert getattr(one, entry.name) == getattr(other, entry.name), entry.name


# ---- GGUF


@pytest.mark.parametrize(("scheme", "symmetric"), TYPES)
@pytest.mark.parametrize("name", [name for name in gguf_files.TINY if name != "gptneox-serial"])
def test_a_gguf_file_holds_the_codes_and_the_model(sources, tmp_path, name, scheme, symmetric):
    export(sources(name), tmp_path / "out.gguf", "gguf", scheme=scheme, symmetric=symmetric)
    source, again = open_checkpoint(sources(name)), open_checkpoint(tmp_path / "out.gguf")
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
    rounded = open_checkpoint(tmp_path / "out.gguf")
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


@pytest.mark.parametrize("name", [name for name in TINY if name not in UNSAYABLE])
def test_a_gguf_file_in_floating_point_is_the_same_model(models, tmp_path, name):
    """Every departure that GGUF can say, with rows of 48, which codes cannot have."""
    without_codes(save(name, models), tmp_path / "out.gguf")
    source, again = open_checkpoint(save(name, models)), open_checkpoint(tmp_path / "out.gguf")
    assert all(torch.equal(again.read(label), source.read(label)) for label in source.shapes)
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
        ("gpt_bigcode-mha", "head_count_kv = 6 is not implemented: use 1"),
        ("gpt_neox-serial", "one with biases, which llama.cpp requires"),
    ],
)
def test_what_gguf_has_no_key_for_is_refused(models, tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        without_codes(save(name, models), tmp_path / "out.gguf")
    assert entries(tmp_path) == []
