"""Packed models: the same bits as the model they were made of, and nothing but that."""

import errno
import json
import random
import shutil

import pytest
import torch

from tests.marks import needs_native
from tests.text.test_sentencepiece_file import directory, trained_file
from tests.tiny_models import KINDS, prompt, save
from tests.weights.packed.conftest import replace
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader.pack import save_packed_model
from tokenmill.memory import atomic_file as whole
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.packed.reader import BEGIN, begin_file, read_header

LONG = prompt(60, seed=5)

pytestmark = needs_native


def make(source, target, **settings):
    save_packed_model(open_checkpoint(source), EngineConfig(program="native", **settings), target, lambda *_: None)
    return target


def rewritten(packed, target, **facts):
    """The same file with other facts in its header, and a checksum that fits them."""
    data = packed.read_bytes()
    old, end = read_header(packed)
    new = old | facts
    text = json.dumps({"facts": new, "checksum": whole.checksum_of(new)}).encode()
    at = BEGIN + old["payload_bytes"]
    target.write_bytes(begin_file(at, len(text)) + data[len(begin_file(0, 0)) : at] + text + data[end:])
    return target


@pytest.fixture
def llama(tmp_path):
    return save("llama", tmp_path)


@pytest.fixture
def packed(llama, tmp_path):
    return make(llama, tmp_path / "llama.packed", dtype="bfloat16")


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize(("dtype", "scheme"), [("float32", "dense"), ("bfloat16", "q8"), ("bfloat16", "q4")])
def test_the_bits_are_the_models(family, dtype, scheme, models, tmp_path):
    path = save(family, models)
    packed = make(path, tmp_path / "x.packed", dtype=dtype, scheme=scheme)
    ours, model = load(packed), load(path, program="native", dtype=dtype, scheme=scheme)
    assert torch.equal(ours.logits(LONG), model.logits(LONG))
    assert ours.config.scheme == scheme
    assert ours.memory == model.memory


def test_the_rules_of_a_sentencepiece_tokenizer_are_kept(llama, tmp_path):
    """The default rules of sentencepiece put characters in their usual form and remove spaces."""
    directory(llama, trained_file(byte_fallback=True))
    ours = open_checkpoint(make(llama, tmp_path / "x.packed")).tokenizer()
    theirs = open_checkpoint(llama).tokenizer()
    assert (
        ours.encode(" \ufb01  \uff76\uff9e\r\n x")
        == theirs.encode("fi \u30ac x")
        == theirs.encode(" \ufb01  \u30ac x ")
    )


@pytest.mark.slow
def test_the_real_model_keeps_its_tokenizer_and_codes(real_model, tmp_path):
    packed = make(real_model, tmp_path / "x.packed")
    ours, model = load(packed), load(real_model)
    assert ours.config.scheme == model.config.scheme == "file"
    chat = [{"role": "user", "content": "Say hello."}]
    assert ours.chat_prompt(chat) == model.chat_prompt(chat)
    texts = [engine.generate(["The sea"], max_new_tokens=12)[0].text for engine in (ours, model)]
    assert texts[0] == texts[1]
    assert ours.tokenizer.eos_token_ids == model.tokenizer.eos_token_ids


def test_a_packed_model_works_without_its_model_and_is_stale_when_that_changed(llama, packed, tmp_path):
    want = load(packed).logits(LONG)
    moved = llama.rename(tmp_path / "elsewhere")
    assert torch.equal(load(packed).logits(LONG), want)
    shutil.copytree(moved, llama)
    assert torch.equal(load(packed).logits(LONG), want)  # a copy is the same model
    config = (llama / "config.json").read_text()
    (llama / "config.json").write_text(config.replace("}", " }", 1))
    with pytest.raises(CheckpointError, match=r"stale: config of .*llama have changed; make it again"):
        load(packed)
    (llama / "config.json").write_text(config)
    weights = bytearray((llama / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (llama / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="stale: weights of"):
        load(packed)


def test_what_it_was_made_for_is_settled(packed):
    for name, value in {"dtype": "float32", "scheme": "q4", "program": "eager"}.items():
        with pytest.raises(ConfigError, match=rf"{name} = .{value}.*is packed for that"):
            load(packed, **{name: value})


@pytest.mark.slow
def test_flipped_bytes_are_refused(packed, tmp_path):
    data = packed.read_bytes()
    facts, end = read_header(packed)
    gap = range(len(begin_file(0, 0)), BEGIN)  # before the weights nothing is read
    damaged = tmp_path / "damaged.packed"
    places = random.Random(3).sample([at for at in range(len(data)) if at not in gap], 60)
    for at in [0, 9, 16, BEGIN, BEGIN + facts["payload_bytes"], end - 1, len(data) - 1, *places]:
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        replace(damaged, flipped)
        with pytest.raises(
            CheckpointError, match=r"damaged|no packed model|is a .* file, not a model|has (format|byteorder)"
        ):
            load(damaged)


def test_cut_files_are_refused(packed, tmp_path):
    data = packed.read_bytes()
    cut = tmp_path / "cut.packed"
    for size in random.Random(4).sample(range(8, len(data)), 30):
        replace(cut, data[:size])
        with pytest.raises(CheckpointError, match=r"cut or damaged|damaged"):
            load(cut)


def test_other_versions_are_refused_by_field(packed, tmp_path):
    other = tmp_path / "other.packed"
    for name, value in {"format": 99, "byteorder": "big"}.items():
        with pytest.raises(CheckpointError, match=rf"has {name} {value!r}, and this tokenmill reads"):
            load(rewritten(packed, other, **{name: value}))
    weights = read_header(packed)[0]["weights"]
    ((dtype, told),) = weights["dtypes"].items()
    damages = [
        ("kept", told["kept"][:-1], "where its config wants"),
        ("kept", [[1 << 40, size] for _, size in told["kept"]], "where its config wants"),
        ("kept", [[-1, size] for _, size in told["kept"]], "where its config wants"),
        ("floats", told["floats"][:-1], "matrices are not those"),
        *(
            ("floats", [[[*run[:at], wrong, *run[at + 1 :]] for run in runs] for runs in told["floats"]], "those")
            for at, wrong in ((0, 1 << 40), (0, -64), (1, 1 << 40), (1, -1), (2, 99), (3, 99))
        ),
    ]
    wrong = [("layout", 99, "layout 99"), ("placed", weights["placed"][:-1], "matrices are not those")]
    wrong += [("dtypes", {dtype: told | {name: value}}, message) for name, value, message in damages]
    for name, value, message in wrong:
        with pytest.raises(CheckpointError, match=message):
            load(rewritten(packed, other, weights=weights | {name: value}))


def test_nothing_else_is_overwritten_and_no_half_is_left(llama, packed, tmp_path, monkeypatch):
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(CheckpointError, match="no packed model: it is not overwritten"):
        make(llama, other)
    before = packed.read_bytes()

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole.os, "fsync", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left"):
        make(llama, packed)
    assert packed.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "llama.packed", "notes.txt"]
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        make(llama, tmp_path / "nowhere" / "x.packed")


def test_there_is_no_way_back(llama, packed, tmp_path, capsys):
    with pytest.raises(ConfigError, match="the model itself"):
        make(packed, tmp_path / "again.packed")
    with pytest.raises(ConfigError, match="only its weights are packed"):
        save_packed_model(open_checkpoint(llama), EngineConfig(program="eager"), tmp_path / "x.packed", lambda *_: None)
    assert main(["quantize", str(packed), "-o", str(tmp_path / "q4"), "-q"]) == 2
    assert f"give the model, {llama}" in capsys.readouterr().err


def test_the_verb(llama, tmp_path, capsys):
    packed = tmp_path / "x.packed"
    assert main(["pack", str(llama), "-o", str(packed), "--scheme", "q8", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["num_bytes"] == packed.stat().st_size
    assert main(["info", str(packed), "--json", "-q"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["packed_from"] == str(llama)
    assert list(facts["types"]) == ["float32 q8, packed for native"]
    arguments = ["--tokens", "1,2,3", "-n", "5", "--json", "-q"]
    assert main(["generate", str(packed), *arguments]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert main(["generate", str(llama), "--scheme", "q8", *arguments]) == 0
    assert ours["tokens"] == json.loads(capsys.readouterr().out)["tokens"]
