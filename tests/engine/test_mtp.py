"""Drafts of the layer that predicts further tokens, beside those of transformers' layers; texts stay as they are."""

import json
from functools import cache
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import mtp_models
from tests.gguf_files import with_tensors
from tests.gguf_models import numbers_of
from tests.marks import needs_native
from tests.mtp_models import MODELS, layer_of, save_with_mtp
from tests.recorded_drafts import check, recorded
from tests.tiny_models import TINY, prompt, reference, save
from tokenmill import SamplingParams, load
from tokenmill.engine import load as module
from tokenmill.engine import mtp, text_rows
from tokenmill.engine.text_rows import ROWS, TargetRows, TextRows
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.program.hidden_rows import RowsRunner
from tokenmill.schedule.blocks import chain_digest
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import convert
from tokenmill.weights.write.quantize import quantize

PROGRAMS = ["eager", pytest.param("native", marks=needs_native)]
SETTINGS = {"dtype": "float32", "packed_cache": False, "device": "cpu", "max_length": 100}
DRAFTING = {**SETTINGS, "speculate": "draft_model", "draft_model": "mtp", "num_draft_tokens": 3}
GIVEN = prompt(23, seed=5)
NAME = "qwen3_5_text"


@cache
def _drafts(name, tokens, count, first):
    return mtp_models.drafts(name, list(tokens), count, first)


def drafts(name, tokens, count, first=1):
    """What the reference drafts, computed once for the programs, whose texts are the same."""
    return _drafts(name, tuple(tokens), count, first)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_those_of_the_layer(name, program, models):
    engine = load(save_with_mtp(name, models), program=program, prefix_cache=False, **DRAFTING)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=12, ignore_eos=True)
    assert len(made) > 5 and made[0][0][:23] == GIVEN and {first for _, _, first in made} == {1}
    check(name, made, drafts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_text_is_followed_from_the_rows_that_are_known(program, models, tmp_path):
    """Of a prefix on disk there are none. A text that goes back, and on with other tokens, is followed anew."""
    path = save_with_mtp(NAME, models)
    with_disk = {**DRAFTING, "program": program, "block_size": 4, "prefix_dir": str(tmp_path)}
    load(path, **with_disk).generate(GIVEN, max_new_tokens=4, ignore_eos=True)
    engine = load(path, **with_disk)
    made = recorded(engine)
    for more in (prompt(9, seed=1), prompt(9, seed=4)):
        engine.generate([*GIVEN, *more], max_new_tokens=6, ignore_eos=True)
    assert min(first for _, _, first in made) > 8
    session = engine.session(prompt(14, seed=2))
    session.generate(max_new_tokens=6, ignore_eos=True)
    session.rewind(9)
    session.append(prompt(5, seed=3))
    session.generate(max_new_tokens=6, ignore_eos=True)
    assert len(made) > 12
    check(NAME, made, drafts)


def said(engine, tokens, count, salt=b""):
    """The text behind these tokens, and how many of them were found in the cache."""
    request = engine.core.request(tokens, SamplingParams(max_new_tokens=count, ignore_eos=True), salt=salt)
    return engine.core.finish([request])[0].tokens, request.sequences[0].num_cached_tokens


def rows_read(engine):
    """Have the engine keep the rows that the layer's head reads: by the layer's tokens, the first one's place in the
    text, and the number of those that are no drafts.
    """
    draft, found = engine.core.speculation.draft, {}
    save = draft.save

    def record(plan, firsts, hidden_TD):
        save(plan, firsts, hidden_TD)
        for work, first in zip(plan.work, firsts, strict=True):
            follower, end = draft._of_sequence[work.sequence.id], work.start + work.count
            key = tuple(work.sequence.tokens[:end]), follower.first, follower.num_known
            found[key] = hidden_TD[first + work.count - 1].clone()

    draft.save = record
    return found


@pytest.mark.parametrize("name", [NAME, "glm4_moe", "deepseek_v3"])
def test_of_several_layers_the_first_drafts(name, tmp_path, caplog):
    """It was trained to read what the model's head reads. transformers leaves all of them out."""
    caplog.set_level("INFO")
    engine = load(save_with_mtp(name, tmp_path, num_layers=3), program="eager", **DRAFTING)
    assert "of 3 layers that predict further tokens the first drafts alone" in caplog.text
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=8, ignore_eos=True)
    check(name, made, drafts)


def test_layers_that_no_number_tells_are_refused(tmp_path):
    path = save_with_mtp("glm4_moe", tmp_path, num_layers=3)
    for number, match in (
        (2, r"unexpected: .*model\.layers\.\d"),
        (-1, "num_nextn_predict_layers"),
        (2**40, "a whole number from 0 to 2048"),
    ):
        config = json.loads((path / "config.json").read_text()) | {"num_nextn_predict_layers": number}
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=match):
            load(path, program="eager", **SETTINGS)


SHARED = {
    "a second turn": lambda turn: [*turn, *prompt(7, seed=1)],
    "another end within a block": lambda turn: [*turn[:18], *prompt(9, seed=2)],
    "another end behind a block": lambda turn: [*turn[:20], *prompt(9, seed=2)],
    "the same prompt": lambda turn: turn[:23],
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", [NAME, "deepseek_v3"])
def test_drafts_begin_right_behind_a_prefix_that_was_found(name, program, models):
    """They and the texts are those of an engine that finds nothing."""
    path, made, texts, rows = save_with_mtp(name, models), [], [], []
    for cached in (True, False):
        engine = load(path, program=program, block_size=4, prefix_cache=cached, **DRAFTING)
        rows.append(rows_read(engine))
        found, own = recorded(engine), []
        turn = [*GIVEN, *said(engine, GIVEN, 9)[0]]
        for change in SHARED.values():
            text, num_cached = said(engine, change(turn), 6)
            assert (num_cached >= 12) == cached
            own.append(text)
        made.append(found)
        texts.append(own)
    assert texts[0] == texts[1] and len(made[0]) > 20 and {first for *_, first in made[0]} == {1}
    assert [tokens for tokens, *_ in made[0]] == [tokens for tokens, *_ in made[1]] and rows[0].keys() == rows[1].keys()
    largest = max(float(row_D.abs().max()) for row_D in rows[0].values())  # by torch other cuts have other last bits
    for key, row_D in rows[0].items():
        torch.testing.assert_close(row_D, rows[1][key], rtol=0, atol=0 if program == "native" else 5e-6 * largest)
    check(name, made[0], drafts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_blocks_of_the_layer_stand_for_rows_that_are_not_kept(program, models):
    """Where a later text has another token behind the last block that is found, the layer's block of it has another
    end: it is followed from there on.
    """
    name, firsts = "deepseek_v3", []
    engine = load(save_with_mtp(name, models), program=program, block_size=4, max_sequences=1, **DRAFTING)
    turn = [*GIVEN, *said(engine, GIVEN, 9)[0]]
    for change in SHARED.values():
        for seed in (7, 8):
            said(engine, prompt(9, seed=seed), 1)
        made = recorded(engine)
        said(engine, change(turn), 6)
        firsts.append({first for *_, first in made})
        check(name, made, drafts)
    assert firsts == [{1}, {1}, {21}, {1}]


def test_later_turns_read_from_where_the_first_did(models, monkeypatch):
    """Of a long text rows are kept of the last tokens alone."""
    monkeypatch.setattr(text_rows, "ROWS", 8)
    engine = load(save_with_mtp(NAME, models), program="eager", block_size=4, **DRAFTING)
    made, tokens = recorded(engine), GIVEN
    for seed in range(4):
        tokens = [*tokens, *prompt(4, seed=seed), *said(engine, [*tokens, *prompt(4, seed=seed)], 6)[0]]
    assert {first for *_, first in made} == {20}
    check(NAME, made, drafts)


def test_no_block_of_a_draft_is_shared(models):
    """Its K and V were computed with the layer's own rows."""
    engine = load(save_with_mtp(NAME, models), program="eager", block_size=4, **{**DRAFTING, "num_draft_tokens": 9})
    made = recorded(engine)
    tokens = [*GIVEN, *said(engine, GIVEN, 20)[0]]
    allocator, digest, found = engine.core.speculation.draft._core.scheduler.allocator, chain_digest(b"", tokens[:1]), 0
    for first in range(1, len(tokens) - 4, 4):
        digest = chain_digest(digest, tokens[first : first + 4])
        found += allocator.is_findable(digest)
    assert max(len(drafted) for _, drafted, _ in made) == 9 and found == allocator.num_named > 8


def test_other_conditions_share_nothing(models, tmp_path):
    """Texts of another salt, and rows of another dtype out of a file."""
    path = save_with_mtp(NAME, models)
    load(path, **{**SETTINGS, "dtype": "bfloat16"}, program="eager").session(GIVEN).save(tmp_path / "x.kv")
    engine = load(path, program="eager", block_size=4, max_sequences=4, **DRAFTING)
    made, draft = recorded(engine), engine.core.speculation.draft
    session = engine.open_session(tmp_path / "x.kv", convert=True)
    session.generate(prompt(4), max_new_tokens=6, ignore_eos=True)
    assert made and min(first for *_, first in made) > 20 and not draft._core.scheduler.allocator.num_named
    del made[:]
    engine.generate([*session.tokens, 5], max_new_tokens=6, ignore_eos=True)
    assert {first for *_, first in made} == {1}
    check(NAME, made, drafts)
    inner, found = draft._core.scheduler.memory, []
    match = inner.match
    inner.match = lambda own, fed: (match(own, fed), found.append(own.kept.num_computed))[0]
    for salt, is_found in ((b"", True), (b"other", False), (b"other", True)):
        del found[:]
        said(engine, [*session.tokens, 6], 6, salt)
        assert (found[0] > 0) == is_found
    del found[:]
    said(engine, [session.tokens[0] + 1, *session.tokens[1:]], 6)  # which no name of a block of the layer has
    assert found[0] == 0
    check(NAME, made, drafts)
    del made[:]
    session.edit(0, session.tokens)  # which it computes itself now
    session.generate(max_new_tokens=6, ignore_eos=True)
    assert {first for *_, first in made} == {1}
    check(NAME, made, drafts)


@needs_native
def test_between_several_steps_in_one_call(models):
    """The program then finds tokens itself, and their rows are where those of any token are."""
    engine = load(save_with_mtp(NAME, models), program="native", **SETTINGS, speculate="adaptive", draft_model="mtp")
    made, proposer = recorded(engine), engine.core.speculation.proposer
    asked, number = proposer.propose, count()

    def propose(sequences, limit, forced):
        """Ask the layer in every second step."""
        ours = next(number) % 2
        return engine.core.speculation.draft.continuations(sequences, 2) if ours else asked(sequences, 3, forced)

    proposer._of_model = lambda sequences, limit: type(proposer._of_matches(1))(0.0, {})
    proposer.propose = propose
    engine.generate(GIVEN, max_new_tokens=40, ignore_eos=True)
    assert len(made) > 3
    check(NAME, made, drafts)


def test_rows_are_kept_of_the_last_texts_alone(models):
    engine = load(save_with_mtp(NAME, models), program="eager", **DRAFTING)
    rows = engine.core.loaded.runner.rows
    sessions = [engine.session(prompt(9, seed=seed)) for seed in range(5)]
    for _ in range(2):
        for session in sessions:
            session.generate(max_new_tokens=3, ignore_eos=True)
            assert len(rows.texts) <= 2
    made = recorded(engine)
    sessions[0].generate(max_new_tokens=6, ignore_eos=True)
    assert made
    check(NAME, made, drafts)


@pytest.fixture(scope="module")
def wanted(models):
    """Texts without drafts."""
    engine = load(save_with_mtp(NAME, models), program="native", speculate="off", **SETTINGS)
    return [engine.generate(prompt(length), max_new_tokens=20, ignore_eos=True, **how).tokens for length, how in TEXTS]


PENALTIES = {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.2}
TEXTS = [(5, {}), (9, {"temperature": 0.9, "seed": 3}), (17, PENALTIES), (1, {})]
HOW = {
    "auto": {},
    "one draft": {"draft_model": "mtp", "speculate": "draft_model", "num_draft_tokens": 1},
    "batch": {"draft_model": "mtp", "speculate": "draft_model", "max_sequences": 4, "max_step_tokens": 11},
}


@needs_native
@pytest.mark.parametrize("how", HOW)
def test_texts_are_those_without_drafts(how, models, wanted, caplog):
    engine = load(save_with_mtp(NAME, models), program="native", **SETTINGS, **HOW[how])
    assert engine.core.speculation.draft is not None
    requests = [(prompt(length), dict(ignore_eos=True, max_new_tokens=20, **more)) for length, more in TEXTS]
    found = [engine.generate(given, **more).tokens for given, more in requests]
    assert found == wanted and "failed" not in caplog.text


@needs_native
@pytest.mark.parametrize("settings", [{"speculate": "off"}, {"draft_model": "none"}, {"speculate": "suffix"}])
def test_it_can_be_left_out(settings, models):
    engine = load(save_with_mtp(NAME, models), **SETTINGS, **settings)
    assert engine.core.speculation.draft is None and not isinstance(engine.core.loaded.runner, RowsRunner)


def test_a_follower_whose_blocks_were_taken_begins_anew(models, monkeypatch, caplog):
    """The rows of the model for its first tokens are not kept any more."""
    monkeypatch.setattr(text_rows, "ROWS", 4)
    engine = load(save_with_mtp(NAME, models), program="eager", **DRAFTING)
    made, draft = recorded(engine), engine.core.speculation.draft
    inner, number, enqueue = draft._core, count(), draft._core.enqueue

    def taken(own):
        """Take the blocks of every fifth follower when it is about to run."""
        if next(number) % 5 == 4:
            inner.scheduler.memory.forget(own)
        enqueue(own)

    monkeypatch.setattr(inner, "enqueue", taken)
    engine.generate(GIVEN, max_new_tokens=24, ignore_eos=True)
    assert len({first for _, _, first in made}) > 2 and "failed" not in caplog.text
    check(NAME, made, drafts)


def test_the_memory_of_the_layer_is_counted(models, monkeypatch):
    """Its weights, its cache and the rows that are kept for it."""
    monkeypatch.setattr(mtp, "free_bytes", lambda device: 100_000)
    with pytest.raises(CapacityError, match="memory for the layer that predicts further tokens"):
        load(save_with_mtp(NAME, models), program="eager", **DRAFTING)


@needs_native
def test_no_warning_where_no_drafted_token_may_come(models, monkeypatch, caplog):
    monkeypatch.setattr(mtp, "num_logits", lambda target: 64)
    monkeypatch.setattr(module, "num_logits", lambda target: 64)
    engine = load(save_with_mtp(NAME, models), program="native", **DRAFTING)
    text = engine.generate(GIVEN, max_new_tokens=9, allowed_token_ids=list(range(100, 120)), ignore_eos=True)
    assert len(text.tokens) == 9 and not caplog.text


@needs_native
def test_logits_of_the_first_tokens_alone(models, monkeypatch):
    monkeypatch.setattr(mtp, "num_logits", lambda target: 64)
    engine = load(save_with_mtp(NAME, models), program="native", **DRAFTING)
    made = recorded(engine)
    text = engine.generate(GIVEN, max_new_tokens=12, ignore_eos=True).tokens
    assert made and all(token < 64 for _, drafted, _ in made for token in drafted) and max(text) >= 64


@pytest.mark.parametrize(
    "size, is_byte_level, number", [(99_999, True, 0), (248_320, True, 62_080), (262_144, False, 0)]
)
def test_how_many_tokens_are_drafted(size, is_byte_level, number):
    tokenizer = SimpleNamespace(is_byte_level=is_byte_level)
    assert mtp.num_logits(SimpleNamespace(model_config=SimpleNamespace(vocab_size=size), tokenizer=tokenizer)) == number


def gguf_with_mtp(name, folder, without=()):
    """llama.cpp's file of such a model, as its converter writes it: norms are stored as 1 + weight. without: see
    with_tensors.
    """
    plain, (layer, fc, norms) = folder / "plain.gguf", layer_of(name)
    quantize(open_checkpoint(save(name, folder)), plain, Silent(), "none", head="none", export="gguf")
    parts = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    parts |= {"self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
    parts |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
    parts |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    tensors = {parts[label.removesuffix(".weight")]: each for label, each in layer.state_dict().items()}
    others = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    tensors |= dict(zip(others, (fc.weight, *(norm.weight for norm in norms)), strict=True))
    number = reference(name).config.num_hidden_layers
    more = {f"blk.{number}.{part}.weight": each + 1 if "norm" in part else each for part, each in tensors.items()}
    keys = {"qwen35.block_count": number + 1, "qwen35.nextn_predict_layers": 1}
    kinds = [kind == "linear_attention" for kind in reference(name).config.layer_types]
    keys |= {"qwen35.attention.recurrent_layers": [*kinds, False]}
    return with_tensors(plain, folder / "mtp.gguf", more, keys, without)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    name = f"{NAME}-gguf"  # whose keys are as wide as its values
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, name, numbers_of(NAME))
        yield gguf_with_mtp(name, tmp_path_factory.mktemp("gguf"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_drafts_out_of_a_gguf_file(program, gguf_file):
    name = f"{NAME}-gguf"
    engine = load(gguf_file, program=program, **DRAFTING)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=8, ignore_eos=True)
    assert made
    check(name, made, drafts)


@pytest.mark.parametrize("program", PROGRAMS)
def test_drafts_out_of_a_gguf_file_that_has_the_layer_alone(program, llama, tmp_path, monkeypatch):
    name = f"{NAME}-gguf"
    monkeypatch.setitem(TINY, name, numbers_of(NAME))
    apart = gguf_with_mtp(name, tmp_path, without="blk.")
    settings = {**DRAFTING, "draft_model": str(apart)}
    engine = load(tmp_path / "plain.gguf", program=program, **settings)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=8, ignore_eos=True)
    assert made
    check(name, made, drafts)
    with pytest.raises(CheckpointError, match="give it as draft_model, beside its model"):
        load(apart)
    with pytest.raises(
        ConfigError, match=r"a layer of this model \(llama, 48 numbers in a row, 211 tokens\), not of qwen"
    ):
        load(llama, program=program, **settings)


def changed(path, change):
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return path


@needs_native
def test_a_layer_that_does_not_fit_is_left_out(tmp_path, caplog):
    """With a warning, unless it was asked for."""

    def narrow(tensors):
        tensors["mtp.layers.0.mlp.down_proj.weight"] = torch.zeros(48, 3)

    path = changed(save_with_mtp(NAME, tmp_path), narrow)
    engine = load(path, **SETTINGS)
    assert engine.core.speculation.draft is None and "mtp.layers.0.mlp.down_proj.weight" in caplog.text
    with pytest.raises(CheckpointError, match=r"1 misshapen: mtp\.layers\.0\.mlp\.down_proj\.weight \[48, 3\]"):
        load(path, **DRAFTING)


@needs_native
def test_a_layer_with_a_tensor_less(tmp_path, caplog):
    def drop(tensors):
        del tensors["mtp.norm.weight"]

    engine = load(changed(save_with_mtp(NAME, tmp_path), drop), **SETTINGS)
    assert engine.core.speculation.draft is None and "1 missing: mtp.norm.weight" in caplog.text


@needs_native
def test_a_layer_with_embeddings_of_its_own(tmp_path, caplog):
    path = save_with_mtp(NAME, tmp_path)
    config = json.loads((path / "config.json").read_text()) | {"mtp_use_dedicated_embeddings": True}
    (path / "config.json").write_text(json.dumps(config))
    engine = load(path, **SETTINGS)
    assert engine.core.speculation.draft is None and "mtp_use_dedicated_embeddings" in caplog.text


def test_what_has_no_such_layer(models, llama):
    with pytest.raises(ConfigError, match="predicts further tokens"):
        load(llama, **{**DRAFTING, "program": "eager"})
    checkpoint = open_checkpoint(save_with_mtp(NAME, models))
    target = SimpleNamespace(model_config=read_config(checkpoint.config), program_name="compiled")
    assert mtp.refuse_mtp(checkpoint, target) == "none with program compiled, only with native or eager"


def saved(rows, tokens, start, count):
    rows.save(tokens, start, torch.arange(start, start + count).float()[:, None].expand(-1, 3))


def test_rows_of_a_text():
    rows, tokens = TextRows(), list(range(10_000))
    saved(rows, tokens[:20], 7, 13)
    assert (rows.first, rows.end) == (7, 20) and rows.rows(8, 20)[:, 0].tolist() == list(range(8, 20))
    saved(rows, tokens[:24], 18, 6)  # two tokens were not accepted
    assert (rows.first, rows.end) == (7, 24) and rows.rows(17, 24)[:, 0].tolist() == list(range(17, 24))
    saved(rows, [*tokens[:15], 1, 1, 1], 17, 1)  # another text from 15 on, of which two rows were found elsewhere
    assert (rows.first, rows.end) == (17, 18)
    saved(rows, tokens[:6], 3, 3)
    assert (rows.first, rows.end) == (3, 6)
    for start in range(6, 6 + 5 * ROWS, 100):
        saved(rows, tokens[: start + 100], start, 100)
        assert rows.end == start + 100 and rows.end - rows.first >= min(rows.end - 3, ROWS)
        assert rows.rows(rows.first, rows.end)[:, 0].tolist() == list(range(rows.first, rows.end))
    saved(rows, tokens, rows.end, ROWS + 50)
    assert rows.end - rows.first == ROWS and rows.rows(rows.end - 1, rows.end)[0, 0] == rows.end - 1


def test_rows_are_copied_from_a_text_with_the_same_tokens():
    rows, tokens = TargetRows(4), list(range(8))

    def saved(number, given, start, count, salt=b"", drafts=(), is_own=True):
        text = Sequence(number, given, 1, 100, kept=Kept(salt=salt, is_own=is_own))
        values = torch.arange(start, start + count).float()[:, None].expand(-1, 3)
        rows.save(Plan([Work(text, start, count, 1, drafts)]), [0], values)
        return rows.texts[number].first

    assert saved(0, tokens, 0, 10, drafts=(50, 51)) == 0  # which the text did not take
    assert saved(1, [*tokens, 50, 60, 61], 9, 2) == 0
    assert rows.texts[1].rows(0, 11)[:, 0].tolist() == list(range(11))
    assert saved(1, [*tokens, 50, 61], 9, 1) == 0
    del rows.texts[1]
    assert saved(2, [*tokens, 50, 60, 61], 10, 1) == 10
    assert saved(3, [*tokens, 50, 60], 9, 1, b"x") == 9 and saved(4, [*tokens, 9, 60], 9, 1) == 9
    assert saved(5, tokens, 6, 2, is_own=False) == 6  # and the other way round, when the first text is gone
    rows.texts = {5: rows.texts[5]}
    assert saved(6, [*tokens, 1], 8, 1) == 8 and saved(7, [*tokens, 1], 8, 1, is_own=False) == 8


def test_a_gguf_file_is_written_without_the_layer(tmp_path, caplog, monkeypatch):
    name = f"{NAME}-gguf"
    monkeypatch.setitem(TINY, name, numbers_of(NAME))
    out = tmp_path / "x.gguf"
    quantize(open_checkpoint(save_with_mtp(name, tmp_path)), out, Silent(), "none", head="none", export="gguf")
    assert "its layer that predicts further tokens is left out" in caplog.text
    assert not read_config(open_checkpoint(out).config).num_mtp


@pytest.mark.parametrize("scheme", ["q8", None])
def test_a_directory_is_written_with_the_layer(scheme, models, tmp_path):
    checkpoint, out = open_checkpoint(save_with_mtp(NAME, models)), tmp_path / "x"
    if scheme is None:
        convert(checkpoint, out, "float32", Silent())
    else:
        quantize(checkpoint, out, Silent(), scheme)
    engine = load(out, program="eager", **DRAFTING)
    made = recorded(engine)
    engine.generate(GIVEN, max_new_tokens=8, ignore_eos=True)
    assert made
    if scheme is None:
        check(NAME, made, drafts)


@needs_native
@pytest.mark.parametrize("name", [NAME, "glm4_moe"])
def test_plan_tells_the_bytes_of_the_layer(name, models, tm):
    """Those that the loaded layer has, with the rows of texts that are kept; none where it does not draft."""
    path = save_with_mtp(name, models)
    options = ("--program", "native", "--dtype", "float32", "--max-length", "100", "--max-sequences", "2")
    code, out, _ = tm("plan", path, *options, "--json", "-q")
    told = json.loads(out)["mtp_bytes"]
    engine = load(path, **DRAFTING, program="native", max_sequences=2)
    loaded = engine.core.speculation.draft._core.loaded
    width = loaded.model_config.hidden_size
    own = 2 * 2 * ROWS * width * 8 + loaded.pool.spec.num_bytes + loaded.program.num_weight_bytes
    of_32_tokens = 32 * 4 * (width + 64)  # counted in the place of the model's embedding and head, which are lent
    assert code == 0 and told == own + of_32_tokens
    assert "more for the layer that predicts further tokens" in tm("plan", path, *options)[1]
    for more in (("--speculate", "off"), ("--draft-model", "none")):
        assert json.loads(tm("plan", path, *options, *more, "--json", "-q")[1])["mtp_bytes"] == 0
