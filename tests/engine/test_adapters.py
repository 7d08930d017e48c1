"""Adapters of an engine: several beside the model, rows that are never shared between them, sessions, receipts."""

import shutil
import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.marks import needs_native
from tests.peft_adapters import save_adapter
from tests.tiny_models import prompt, save
from tokenmill import CapacityError, CheckpointError, ConfigError, RequestError, SamplingParams, SnapshotError, load
from tokenmill.kernels.native_library import builds
from tokenmill.program.native.program import Native

NAMES = ("a", "b", "c")
TOKENS = prompt(21, seed=4)


def adapters_of(family, folder):
    """c has norms of its own, too: of PEFT's names all that end so."""
    kinds = {"a": {}, "b": {"target_modules": ["embed_tokens", "q_proj"], "r": 3}}
    kinds["c"] = {"r": 2, "use_rslora": True, "modules_to_save": ["norm"]}
    for number, name in enumerate(NAMES):
        if not (folder / family / name).exists():
            save_adapter(family, folder / family / name, seed=number, **kinds[name])
    return {name: folder / family / name for name in NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


def loaded(family, models, folder, names=NAMES, **settings):
    settings = {"dtype": "float32", "block_size": 4, "max_length": 96, "max_sequences": 4, **settings}
    if settings.get("program") == "compiled":  # traced, and not translated by a C++ compiler, which takes long
        settings["compile_backend"] = "eager"
    engine = load(save(family, models), **settings)
    paths = adapters_of(family, folder)
    for name in names:
        engine.load_adapter(name, paths[name])
    return engine


def together(engine, texts):
    """The logits of texts that are computed in the same steps, by their lengths and the names of their adapters."""
    core, found = engine.core, {}
    sequences = [core.inputs.kept(list(tokens), 0, adapter=core.adapter(name)) for tokens, name in texts]
    for sequence, (tokens, name) in zip(sequences, texts, strict=True):
        rows = found[len(tokens), name] = []
        sequence.on_logits = lambda work, logits_RV, rows=rows: rows.append(logits_RV.clone())
        core.enqueue(sequence)
    for sequence in sequences:
        core.run_to_end(sequence)
        core.release(sequence)
    return {key: torch.cat(rows) for key, rows in found.items()}


@needs_native
@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        # Adapters are added to what a scheme has multiplied; so each scheme is tried with one family.
        pytest.param(family, scheme, marks=() if always else pytest.mark.long)
        for family, scheme, always in (
            *(("llama", scheme, True) for scheme in ("dense", "q8", "q4")),
            *(("mixtral", scheme, scheme != "q8") for scheme in ("dense", "q8", "q4")),
            *(("qwen3_5_text", scheme, scheme == "q8") for scheme in ("dense", "q8", "q4")),
        )
    ],
)
def test_a_row_has_the_same_bits_whatever_runs_beside(family, scheme, models, folder):
    """Alone, in any chunk, beside other adapters and beside the model alone, with one thread or two."""
    texts = [(prompt(length, seed=length), name) for length in (3, 18, 33) for name in (None, *NAMES)]
    alone = {}
    with loaded(family, models, folder, scheme=scheme, threads=1, max_step_tokens=64) as engine:
        for tokens, name in texts:
            alone[len(tokens), name] = engine.logits(tokens, adapter=name)
    assert len({tuple(logits[-1].tolist()) for logits in alone.values()}) == len(alone), "each changes the logits"
    with load(save(family, models), dtype="float32", scheme=scheme, max_length=96) as plain:
        for tokens, name in texts:
            if name is None:
                assert torch.equal(plain.logits(tokens), alone[len(tokens), None])
    with loaded(family, models, folder, scheme=scheme, threads=2, max_step_tokens=7, prefix_cache=False) as engine:
        for tokens, name in texts:
            assert torch.equal(engine.logits(tokens, adapter=name), alone[len(tokens), name])
        for key, logits_TV in together(engine, texts).items():
            assert torch.equal(logits_TV, alone[key])


def test_texts_with_norms_of_an_adapter_beside_others_in_program_eager(models, folder):
    texts = [(prompt(length, seed=length), name) for length in (3, 18) for name in (None, *NAMES)]
    with loaded("llama", models, folder, program="eager", scheme="dense", prefix_cache=False) as engine:
        alone = {(len(tokens), name): engine.logits(tokens, adapter=name) for tokens, name in texts}
        for key, logits_TV in together(engine, texts).items():
            torch.testing.assert_close(logits_TV, alone[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("llama", {"scheme": "q8"}),
        ("mixtral", {"scheme": "dense"}),
        ("gemma3_text", {"scheme": "dense"}),
        ("llama", {"scheme": "dense", "compile": "static"}),
    ],
)
def test_program_compiled_computes_adapters_by_the_modules(family, how, models, folder):
    """Rows of the model alone go through the compiled functions, of which no adapter changes a bit."""
    texts = [(prompt(length, seed=length), name) for length in (3, 18) for name in (None, *NAMES)]
    with loaded(family, models, folder, program="eager", scheme=how["scheme"], prefix_cache=False) as engine:
        wanted = {(len(tokens), name): engine.logits(tokens, adapter=name) for tokens, name in texts}
    compiled = {"program": "compiled", "compile": "dynamic", "compile_phases": "both", **how}
    with loaded(family, models, folder, names=(), prefix_cache=False, **compiled) as engine:
        core, program = engine.core, engine.core.loaded.program
        before = engine.generate(prompt(18, seed=18), max_new_tokens=6, ignore_eos=True)
        for name, path in adapters_of(family, folder).items():
            engine.load_adapter(name, path)
        tensors = {tensor.data_ptr() for tensor in (*program.decoder.parameters(), *program.decoder.buffers())}
        twins = (*program.adapted.parameters(), *program.adapted.buffers())
        assert {tensor.data_ptr() for tensor in twins} == tensors, "no weight is there twice"
        calls, found = set(program.calls), together(engine, texts)
        for key, logits_TV in found.items():
            torch.testing.assert_close(logits_TV, wanted[key], rtol=0, atol=1e-5)
        params = SamplingParams(max_new_tokens=6, ignore_eos=True)
        requests = {name: core.request(prompt(18, seed=18), params, adapter=name) for name in (None, *NAMES)}
        done = core.finish(list(requests.values()))
        texts_of = {name: completion.tokens for name, completion in zip(requests, done, strict=True)}
        assert texts_of[None] == before.tokens and calls <= set(program.calls)
        with loaded(family, models, folder, program="eager", scheme=how["scheme"]) as eager:
            for name in NAMES:
                again = eager.generate(prompt(18, seed=18), max_new_tokens=6, ignore_eos=True, adapter=name)
                assert texts_of[name] == again.tokens


@needs_native
@pytest.mark.parametrize("build", [build for build in builds() if build != "amx"])
def test_builds_of_the_library_agree(build, models, folder, monkeypatch):
    """As they do without adapters; the portable one has no fused operation."""
    with loaded("mixtral", models, folder, scheme="q8") as engine:
        expected = [engine.logits(TOKENS, adapter=name) for name in NAMES]
    monkeypatch.setattr(Native, "build", build)
    with loaded("mixtral", models, folder, scheme="q8") as engine:
        for name, logits in zip(NAMES, expected, strict=True):
            torch.testing.assert_close(engine.logits(TOKENS, adapter=name), logits, rtol=0, atol=1e-5)


@needs_native
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_programs_agree_where_factors_are_rounded(dtype, models, folder):
    """To the dtype of the model. The bound is that of the dtype, of the largest logit."""
    found = []
    for program in ("native", "eager"):
        with loaded("llama", models, folder, dtype=dtype, program=program, scheme="dense") as engine:
            found.append(engine.logits(TOKENS, adapter="a"))
    torch.testing.assert_close(
        *found, rtol=0, atol=(3e-2 if dtype == "bfloat16" else 4e-3) * float(found[0].abs().max())
    )


@pytest.mark.parametrize("program", ["native", "eager", "compiled"])
def test_rows_are_not_found_again_by_another_adapter(program, models, folder, tmp_path):
    """Not in memory, nor on disk, nor by another adapter under the same name (vLLM 30931, 42125; llama.cpp 26207)."""
    sampling = {"max_new_tokens": 8, "ignore_eos": True}
    with loaded("llama", models, folder, program=program, prefix_cache=False, scheme="dense") as quiet:
        texts = {name: quiet.generate(TOKENS, adapter=name, **sampling).tokens for name in (None, *NAMES)}
    assert len(set(texts.values())) == len(texts)
    how = {"program": program, "prefix_dir": str(tmp_path / "blocks"), "scheme": "dense"}
    for _ in range(2):  # the second time out of the folder
        with loaded("llama", models, folder, **how) as engine:
            for name in (None, "a", "b", "c", "a", None):
                assert engine.generate(TOKENS, adapter=name, **sampling).tokens == texts[name]
            engine.load_adapter("a", folder / "llama" / "b", replace=True)
            assert engine.generate(TOKENS, adapter="a", **sampling).tokens == texts["b"]


def test_rows_are_found_again_by_the_same_bytes(models, folder):
    """Under any name."""
    with loaded("llama", models, folder, program="eager") as engine:
        first = engine.session(TOKENS, adapter="a")
        first.prefill()
        engine.load_adapter("other", folder / "llama" / "a")
        core = engine.core
        request = core.request([*TOKENS, 1], SamplingParams(max_new_tokens=1), adapter="other")
        core.finish([request])
        assert request.sequences[0].num_cached_tokens == 20


def test_an_adapter_that_is_unloaded_goes_on_in_texts_that_run(models, folder):
    with loaded("llama", models, folder, program="eager") as engine:
        whole = engine.generate(TOKENS, adapter="a", max_new_tokens=9, ignore_eos=True).tokens
        stream = engine.stream(TOKENS, adapter="a", max_new_tokens=9, ignore_eos=True)
        session, seen = engine.session(TOKENS, adapter="a"), list(next(iter(stream)).tokens)
        engine.unload_adapter("a")
        seen += [token for piece in stream for token in piece.tokens]
        assert tuple(seen) == whole == session.fork().generate(max_new_tokens=9, ignore_eos=True).tokens
        with pytest.raises(RequestError, match="adapter 'a' is not loaded: b, c"):
            engine.generate(TOKENS, adapter="a")
        with pytest.raises(RequestError, match="not loaded"):
            engine.unload_adapter("a")


def test_a_name_is_taken_once(models, folder):
    with loaded("llama", models, folder, program="eager") as engine:
        with pytest.raises(ConfigError, match="a name that no adapter has yet"):
            engine.load_adapter("a", folder / "llama" / "b")
        with pytest.raises(ConfigError, match="a name that is not empty"):
            engine.load_adapter(" ", folder / "llama" / "b")


@pytest.mark.parametrize("names", [["x"] * 6, "uvwxyz"])
def test_several_that_load_at_once_find_one_place(names, models, folder):
    """One of one name, and one where there is one place."""
    with loaded("llama", models, folder, names=(), program="eager", max_loras=1) as engine:
        together, ended = threading.Barrier(len(names)), list[str]()

        def add(name):
            together.wait(60)
            try:
                engine.load_adapter(name, folder / "llama" / "a")
                ended.append("loaded")
            except (ConfigError, CapacityError) as error:
                ended.append(type(error).__name__)

        threads = [threading.Thread(target=add, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(ended) == sorted([("CapacityError", "ConfigError")[names[0] == "x"]] * 5 + ["loaded"])


def test_weights_that_changed_since_are_not_read_for_an_adapter(models, tmp_path):
    """DoRA needs the norms of the rows of the model that was loaded."""
    whole = tmp_path / "model"
    shutil.copytree(save("llama", models), whole)
    save_adapter("llama", tmp_path / "dora", target_modules=["q_proj"], use_dora=True)
    with load(whole, dtype="float32", program="eager", scheme="dense", packed_cache=False) as engine:
        engine.load_adapter("before", tmp_path / "dora")
        file = whole / "model.safetensors"
        tensors = {name: 2 * tensor for name, tensor in load_file(file).items()}
        file.unlink()
        save_file(tensors, file, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match="has other weights than when the model was loaded"):
            engine.load_adapter("after", tmp_path / "dora")


def test_the_rank_of_experts_is_each_ones(models, tmp_path):
    """PEFT has the factors of all experts in one tensor of as many rows as they have together."""
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    save_adapter("mixtral", tmp_path / "a", target_modules=["q_proj"], target_parameters=parameters)
    with load(save("mixtral", models), dtype="float32", program="eager", scheme="dense", max_lora_rank=4) as engine:
        assert engine.load_adapter("a", tmp_path / "a").rank == 4


def test_a_file_that_is_replaced_while_it_is_loaded_changes_nothing(models, folder, tmp_path):
    save_adapter("llama", tmp_path / "mine", seed=9)
    with loaded("llama", models, folder, names=(), program="eager") as engine:
        engine.load_adapter("mine", tmp_path / "mine")
        before = engine.logits(TOKENS, adapter="mine")
        save_adapter("llama", tmp_path / "mine", seed=10)
        assert torch.equal(engine.logits(TOKENS, adapter="mine"), before)
        engine.load_adapter("mine", tmp_path / "mine", replace=True)
        assert not torch.equal(engine.logits(TOKENS, adapter="mine"), before)


@pytest.mark.parametrize("program", ["native", "eager", "compiled"])
def test_a_session_keeps_its_adapter(program, models, folder, tmp_path):
    sampling = {"max_new_tokens": 6, "ignore_eos": True}
    with loaded("llama", models, folder, program=program) as engine:
        whole = engine.generate(TOKENS, adapter="b", max_new_tokens=12, ignore_eos=True).tokens
        with engine.session(TOKENS, adapter="b") as session:
            assert session.generate(**sampling).tokens == whole[:6]
            session.save(tmp_path / "b.kv")
            assert session.adapter.name == "b"
            assert session.fork().generate(**sampling).tokens == whole[6:]
        with engine.open_session(tmp_path / "b.kv") as session:
            assert session.adapter.name == "b"
            assert session.generate(**sampling).tokens == whole[6:]
    with loaded("llama", models, folder, names=("a",), program=program) as engine:
        with pytest.raises(SnapshotError, match=r"adapter 'b' \(sha256 .*which is not loaded"):
            engine.open_session(tmp_path / "b.kv")
        engine.load_adapter("b", folder / "llama" / "c")
        with pytest.raises(SnapshotError, match="the one of that name here has other bytes"):
            engine.open_session(tmp_path / "b.kv")
        engine.load_adapter("under another name", folder / "llama" / "b")
        with engine.open_session(tmp_path / "b.kv") as session:
            assert session.generate(**sampling).tokens == whole[6:]


def test_a_receipt_names_the_adapter(models, folder):
    with loaded("llama", models, folder, program="eager", scheme="dense") as engine:
        receipt = engine.generate(TOKENS, adapter="b", max_new_tokens=6).receipt()
        assert receipt.model["adapter"] == {"name": "b", "sha256": engine.adapters["b"].digest.hex()}
        assert engine.verify(str(receipt)).is_verified
        plain = replace(receipt, model={key: value for key, value in receipt.model.items() if key != "adapter"})
        assert not engine.verify(plain).is_verified
        engine.unload_adapter("b")
        found = engine.verify(receipt)
        assert found.verdict == "unchecked" and "adapter 'b'" in found.notes[0]


SAMPLING = {"max_new_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def texts(models, folder):
    """Without drafts."""
    with loaded("llama", models, folder, speculate="off", scheme="dense") as engine:
        return [engine.generate(TOKENS[:5] * 3, adapter=name, **SAMPLING).tokens for name in (None, *NAMES)]


@pytest.mark.parametrize("speculate", ["suffix", "adaptive", "draft_model", "off"])
def test_speculation_changes_no_text(speculate, texts, models, folder):
    more = {"draft_model": "q8"} if speculate == "draft_model" else {}
    with loaded("llama", models, folder, speculate=speculate, scheme="dense", **more) as engine:
        for name, text in zip((None, *NAMES), texts, strict=True):
            assert engine.generate(TOKENS[:5] * 3, adapter=name, **SAMPLING).tokens == text


def test_one_adapter_for_every_text(models, folder):
    """As --adapter sets it; requests may name another."""
    with loaded("llama", models, folder, names=("c",), program="eager", adapter=str(folder / "llama" / "b")) as engine:
        assert sorted(engine.adapters) == ["b", "c"]
        assert torch.equal(engine.logits(TOKENS), engine.logits(TOKENS, adapter="b"))
        assert engine.session(TOKENS).adapter.name == "b"
        assert not torch.equal(engine.logits(TOKENS), engine.logits(TOKENS, adapter="c"))
        before = engine.logits(TOKENS)
        with pytest.raises(RequestError, match="'b' stays: every text of this engine is computed with that one"):
            engine.unload_adapter("b")
        with pytest.raises(ConfigError, match="another name: every text of this engine"):
            engine.load_adapter("b", folder / "llama" / "a", replace=True)
        assert torch.equal(engine.logits(TOKENS, adapter="b"), before)
    modules = ",".join(f"{name}={folder / 'llama' / name}" for name in NAMES)
    with loaded("llama", models, folder, names=(), program="eager", lora_modules=modules) as engine:
        assert sorted(engine.adapters) == [*NAMES]


def test_scores_and_vectors_are_an_adapters(models, folder):
    with loaded("llama", models, folder, program="eager", scheme="dense") as engine:
        (score,) = engine.score(TOKENS, [[5]], adapter="a")
        logits_V = engine.logits(TOKENS, adapter="a")[-1]
        assert score == pytest.approx(float(torch.log_softmax(logits_V.double(), -1)[5]), abs=1e-5)
        vectors = [engine.embed(TOKENS, adapter=name) for name in (None, *NAMES)]
        assert len({tuple(vector.tolist()) for vector in vectors}) == len(vectors)


def test_an_encoder_computes_with_an_adapter(models, folder):
    """Its texts are computed whole, and have no head."""
    from tests.peft_adapters import save_adapter_of
    from tests.tiny_encoders import encoder, save_encoder

    path = save_encoder("bert", folder / "encoder")
    peft = save_adapter_of(encoder("bert"), folder / "of encoder", target_modules=r".*layer\..*(query|value|dense)")
    with load(path, dtype="float32", program="eager", scheme="dense") as engine:
        engine.load_adapter("a", folder / "of encoder")
        tokens = TOKENS[:9]
        with torch.no_grad():
            rows = peft(torch.tensor([tokens]), token_type_ids=torch.zeros(1, len(tokens), dtype=torch.long))[0][0]
        wanted = torch.nn.functional.normalize(rows.mean(0), dim=0)
        torch.testing.assert_close(engine.embed(tokens, pooling="mean", adapter="a"), wanted, rtol=0, atol=1e-5)
