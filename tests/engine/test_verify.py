"""Receipts of every kind are verified, and what was changed in them is found and named."""

import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.byte_model import save_thinking_model
from tests.receipts.random_texts import changed, is_checkable, random_prompt, random_settings
from tests.tiny_models import prompt, save
from tests.word_model import save_word_model
from tokenmill import ReceiptError, RequestError, TokenmillError, load
from tokenmill.engine import claim
from tokenmill.kernels import native_library
from tokenmill.program.native.program import Native
from tokenmill.receipts.read import checked_receipt

SETTINGS = {"max_length": 128, "threads": 1, "packed_cache": False}
SCARCE = {"max_sequences": 3, "block_size": 8, "cache_tokens": 160, "max_step_tokens": 48}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    return save_thinking_model(tmp_path_factory.mktemp("thinking") / "bytes")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return save_word_model(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def engine(words):
    return load(words, dtype="float32", **SETTINGS)


@pytest.fixture(scope="module")
def receipt(engine):
    return engine.generate([5, 6, 7], max_new_tokens=30, temperature=0.9, seed=11).receipt()


def is_true(engine, receipt):
    """Whether the engine, asked for the text of a receipt, gives it."""
    try:
        done = engine.generate(list(receipt.prompt), receipt.sampling)
    except TokenmillError:
        return False
    ours = (done.tokens, done.text, done.finish_reason, done.stop_reason)
    return ours == (receipt.tokens, receipt.text, receipt.finish_reason, receipt.stop_reason)


def outcome_of(engine, document):
    """The verdict on a document, which may be none that can be read."""
    try:
        return engine.verify(json.dumps(document)).verdict
    except ReceiptError:
        return "unreadable"


def receipts_of(engine, draw, count):
    """Receipts of random texts, some of them of sessions; what one kind of settings cannot serve is left out."""
    found = []
    while len(found) < count:
        settings, prompts = random_settings(draw), [random_prompt(draw, 259) for _ in range(draw.randint(1, 3))]
        try:
            found += [each.receipt() for one in engine.generate(prompts, **settings) for each in one.completions]
            settings.pop("n", None)
            with engine.session(prompts[0]) as session:
                for _ in range(draw.choice((0, 0, 3))):
                    more = None if draw.random() < 0.6 else random_prompt(draw, 259)
                    found.append(session.generate(more, **settings).receipt())
        except (RequestError, TokenmillError):
            continue
    return found


PROGRAMS = {
    "native, scarce": {"program": "native", "dtype": "float32", "speculate": "adaptive", **SCARCE},
    "native, 4 bits": {"program": "native", "dtype": "bfloat16", "scheme": "q4", "cache_format": "int8", **SCARCE},
    "native, suffix": {"program": "native", "scheme": "q8", "speculate": "suffix", "max_step_tokens": 16},
    "eager": {"program": "eager", "dtype": "float32", "max_sequences": 3},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "native, scarce" else pytest.mark.slow) for name in PROGRAMS]
)
def test_random_receipts_are_verified_and_changed_ones_refused(name, thinking):
    """With the hash as it was, each change; with the hash computed again, each that is not true of the model."""
    draw = random.Random(name)
    engine, quiet = (load(thinking, **SETTINGS | more) for more in (PROGRAMS[name], {**PROGRAMS[name], **alone(name)}))
    receipts = receipts_of(engine, draw, {"native, scarce": 30, "eager": 60}.get(name, 200))
    found = dict(engine.verify_each(receipts))
    assert len(found) == len(receipts)
    assert {found[number].verdict for number in range(len(receipts))} == {"verified"}
    for each in receipts:
        assert outcome_of(quiet, changed(each.document, draw, again=False)[0]) in ("refused", "unreadable")
        document, path = changed(each.document, draw, again=True, only=is_checkable)
        outcome = outcome_of(quiet, document)
        if each.session is None and not path.startswith("model") and outcome not in ("unreadable", "unchecked"):
            is_right = is_true(quiet, checked_receipt(document))
            assert outcome == ("verified" if is_right else "refused") or (outcome, name) == ("consistent", "eager"), (
                path
            )
        elif path.startswith("model"):
            assert outcome in ("refused", "unreadable"), path


def alone(name):
    """Settings with room for all, and no drafts."""
    return {"speculate": "off", "prefix_cache": False, "max_sequences": 1, "block_size": None, "cache_tokens": None}


def test_a_receipt_is_the_same_however_its_text_was_computed(words):
    how = (
        {},
        {"speculate": "suffix"},
        {"prefix_cache": False},
        {"block_size": 8, "max_step_tokens": 5},
        {"threads": 2},
    )
    settings = {"max_new_tokens": 20, "temperature": 0.8, "seed": 3, "presence_penalty": 0.5}
    made = []
    for more in how:
        engine = load(words, dtype="float32", **{**SETTINGS, **more})
        prompts = [prompt(9), prompt(9)[:5], prompt(9)]
        made.append([each.receipt() for each in engine.generate(prompts, **settings)])
        core = engine.core
        request = core.request(prompts[0], engine.core.inputs.params(settings), emitted=[made[-1][0].tokens[:7]])
        assert core.finish([request])[0].receipt() == made[-1][0]
    assert all(each == made[0] for each in made) and len({str(each) for each in made[0]}) == 2


def test_a_changed_token_is_named(engine, receipt):
    tokens = list(receipt.tokens)
    tokens[7] = (right := tokens[7]) + 1
    found = engine.verify(replace(receipt, tokens=tuple(tokens)))
    assert found.verdict == "refused" and not found.is_verified
    (one,) = found.findings
    assert (one.what, one.position, one.claimed, one.found) == ("tokens", 7, right + 1, right)
    assert f"token 7 of 30 (position 10): {right + 1} ('w{right + 1}') is claimed" in one.message
    assert f"the engine chooses {right} ('w{right}')" in one.message


@pytest.mark.parametrize(
    ("change", "what", "said"),
    [
        ({"prompt": (5, 6, 8)}, "tokens", "the engine chooses"),
        (
            {"finish_reason": "eos"},
            "finish_reason",
            "finish_reason is 'eos' in the receipt, and 'length' by its tokens",
        ),
        ({"stop_reason": 5}, "stop_reason", "stop_reason is 5 in the receipt, and None by its tokens"),
        ({"text": "w1"}, "text", "text is 'w1' in the receipt"),
        ({"prompt": (5, 6, 99999)}, "settings", "token id 99999 is out of range"),
        ({"tokens": (99999,)}, "settings", "token id 99999 is out of range"),
        ({"prompt": tuple([5] * 128)}, "settings", "the prompt has 128 tokens"),
        ({"is_changed": True}, "hash", "the hash does not match the receipt's fields"),
    ],
)
def test_what_else_was_changed_is_named(engine, receipt, change, what, said):
    found = engine.verify(replace(receipt, **change))
    assert found.verdict == "refused" and [each.what for each in found.findings] == [what]
    assert said in found.findings[0].message


@pytest.mark.parametrize("change", [{"seed": 12}, {"temperature": 0.8}, {"top_k": 3}, {"repetition_penalty": 1.5}])
def test_a_changed_setting_shows_in_the_tokens(engine, receipt, change):
    found = engine.verify(replace(receipt, sampling=replace(receipt.sampling, **change)))
    assert found.verdict == "refused" and found.findings[0].what == "tokens"


def test_a_text_that_was_cut_or_goes_on_behind_its_end_is_refused(engine, receipt):
    found = engine.verify(replace(receipt, tokens=receipt.tokens[:-1]))
    assert "the text does not end here" in found.findings[0].message
    params = {"max_new_tokens": 9, "stop_token_ids": [receipt.tokens[4]], "temperature": 0.9, "seed": 11}
    stopped = engine.generate([5, 6, 7], **params).receipt()
    assert engine.verify(stopped).is_verified and stopped.finish_reason == "stop" and len(stopped.tokens) == 5
    longer = replace(stopped, tokens=receipt.tokens[:9], finish_reason="length", stop_reason=None)
    assert "token 5 of 9 ends the text" in engine.verify(longer).findings[0].message
    assert engine.verify(replace(receipt, tokens=())).verdict == "refused"


def test_a_stop_text_that_only_the_end_shows(thinking, monkeypatch):
    """The last byte of the stop text waits for more of its character until the end of the text comes."""
    engine = load(thinking, program="native", **SETTINGS)
    settings = {"temperature": 1.0, "max_new_tokens": 60, "allowed_token_ids": (0xC3, 0x61, 256)}
    found = []
    flushed = claim._flushed
    monkeypatch.setattr(claim, "_flushed", lambda *given: found.append(flushed(*given)) or found[-1])
    for seed in range(30):
        done = engine.generate([1, 2], seed=seed, stop=("\ufffd",), **settings)
        assert engine.verify(done.receipt()).is_verified
    assert any(found)
    cut = replace(done.receipt(), tokens=done.tokens[:1], text="", stop_reason="\ufffd")
    assert engine.verify(cut).verdict == "refused"


def test_a_changed_weight_is_named(words, engine, receipt, tmp_path):
    """One bit of one weight, in the middle of the file, with its time put back."""
    other = tmp_path / "other"
    other.mkdir()
    for file in words.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    found = load(other, dtype="float32", **SETTINGS).verify(receipt)
    assert found.verdict == "refused" and [each.what for each in found.findings] == ["model"]
    assert "model.safetensors has other contents: sha256" in found.findings[0].message


def test_files_that_change_under_an_engine_give_no_receipt(words, tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    for file in words.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    engine = load(path, **SETTINGS)
    done = engine.generate([1], max_new_tokens=2)
    tensors = load_file(path / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path / "model.safetensors")
    with pytest.raises(ReceiptError, match=r"model\.safetensors of the model changed since it was loaded"):
        done.receipt()


def test_rows_of_another_dtype_give_no_receipt(words, tmp_path):
    load(words, dtype="bfloat16", **SETTINGS).session([1, 2, 3, 4]).save(tmp_path / "x.kv")
    session = load(words, dtype="float32", **SETTINGS).open_session(tmp_path / "x.kv", convert=True)
    with pytest.raises(ReceiptError, match="rows that another program, dtype or scheme computed"):
        session.generate(max_new_tokens=2).receipt()


def test_other_settings_are_named_and_the_text_is_only_consistent(words, receipt):
    found = load(words, dtype="float32", program="eager", **SETTINGS).verify(receipt)
    assert found.verdict == "consistent" and not found.findings
    assert any("program 'native', here 'eager'" in note for note in found.notes)
    tokens = (*receipt.tokens[:7], receipt.tokens[7] + 1, *receipt.tokens[8:])
    found = load(words, dtype="float32", program="eager", **SETTINGS).verify(replace(receipt, tokens=tokens))
    assert found.verdict == "refused" and found.findings[0].position == 7


@pytest.mark.slow
@pytest.mark.skipif(
    not native_library.is_usable() or native_library.best_build() == "portable", reason="no other build is here"
)
@pytest.mark.parametrize("scheme", ["dense", "q8"])
def test_another_build_finds_nothing_wrong(thinking, scheme, monkeypatch):
    """Its last bits are others, so that a token may be another where two are as likely; a changed one is found."""
    settings = {**SETTINGS, "program": "native", "dtype": "bfloat16", "scheme": scheme}
    receipts = receipts_of(load(thinking, **settings), random.Random(scheme), 60)
    monkeypatch.setattr(Native, "build", "portable")
    engine, verdicts, draw = load(thinking, **settings), set(), random.Random(0)
    for each in receipts:
        found = engine.verify(each)
        verdicts.add(found.verdict)
        assert any("build" in note and "portable" in note for note in found.notes)
        if len(each.tokens) > 8:
            place = draw.randrange(len(each.tokens))
            tokens = (*each.tokens[:place], (each.tokens[place] + 97) % 256, *each.tokens[place + 1 :])
            assert engine.verify(replace(each, tokens=tokens)).verdict == "refused"
    assert "refused" not in verdicts and "verified" in verdicts


def test_a_receipt_that_needs_more_room_is_not_checked(words, receipt):
    found = load(words, dtype="float32", **{**SETTINGS, "max_length": 16}).verify(receipt)
    assert found.verdict == "unchecked" and "max_length is 16 here, and the receipt needs 33" in found.reasons[0]


def test_a_text_that_fills_max_length_is_verified(engine):
    for asked in ({}, {"stop": "w5 w5 w5 w5"}, {"temperature": 0.9, "seed": 3}):
        for most in (123, 124, 125):
            done = engine.generate([5, 6, 7], max_new_tokens=most, ignore_eos=True, **asked)
            assert engine.verify(done.receipt()).is_verified, (asked, most)
    with engine.session([5, 6, 7]) as session:
        session.generate(max_new_tokens=90, ignore_eos=True)
        assert engine.verify(session.generate(max_new_tokens=-1, ignore_eos=True).receipt()).is_verified


def test_a_receipt_of_another_version_is_checked_and_says_so(engine, receipt):
    found = engine.verify(replace(receipt, tokenmill="0.0.1"))
    assert found.is_verified and "made by tokenmill 0.0.1" in found.notes[0]


def test_a_model_without_files_has_no_receipts(llama):
    torch.manual_seed(0)
    engine = load(save("llama", llama.parent), **SETTINGS)
    assert engine.verify(engine.generate([[1, 2]], max_new_tokens=3)[0].receipt()).is_verified  # without a tokenizer


def test_what_is_no_receipt_is_refused_by_name(engine):
    with pytest.raises(ReceiptError, match="no JSON"):
        engine.verify("{")
    with pytest.raises(ReceiptError, match="must be an object"):
        engine.verify([])


def test_many_are_taken_in_every_form_and_a_damaged_one_leaves_the_others(engine, receipt):
    given = [receipt, "{", str(receipt), receipt.document, 5, str(receipt).encode()]
    found = dict(engine.verify_each(given))
    verdicts = [found[number].verdict for number in range(6)]
    assert verdicts == ["verified", "unreadable", "verified", "verified", "unreadable", "verified"]
    assert "no JSON" in found[1].reasons[0]
