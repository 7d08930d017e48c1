"""Law 14: everything at once. Several threads, scarce blocks, shared blocks on disk, forks, rewinds, edits, saves,
opens (converted too), scores, beam searches, streams closed early and resumed, deadlines, interrupts, constraints,
drafts out of a store on disk, and adapters, loaded and unloaded meanwhile: every text is that of a quiet engine.

TOKENMILL_LAW_14_SECONDS says how long, for each program; `make test-long` takes ten minutes.
"""

import os
import random
import threading
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests import gguf_files, mtp_models
from tests.assistant_models import save_assistant
from tests.at_once import run_at_once
from tests.byte_model import THINK, save_thinking_model
from tests.calibrate.runs import calibrated
from tests.interrupts import lines
from tests.mtp_models import save_with_mtp
from tests.peft_adapters import save_adapter
from tests.recorded_drafts import check, recorded
from tests.state_model import save_with_states
from tests.tiny_models import HYBRIDS, UNLIKE, VOCABULARY, prompt, reference, save
from tests.unequal_model import save_unequal
from tokenmill import RequestError, SamplingParams, load
from tokenmill.engine.mtp import refuse_rows
from tokenmill.sample.matchers import Matchers
from tokenmill.sample.sampler import choose
from tokenmill.sample.state import Row
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import Plan, Work
from tokenmill.text.thinking import thinking_of
from tokenmill.weights.pooling import POOLINGS

SECONDS = float(os.environ.get("TOKENMILL_LAW_14_SECONDS", "0.5"))
THREADS = 4
CONSTRAINTS = (
    {},
    {},
    {"regex": "[a-f]{2,5}x[0-9]*"},
    {"choice": ("Paris", "Parma", "Rome")},
    {"grammar": 'start: a "!" b\na[max_tokens=2]: /[a-d]*/\nb[max_tokens=2]: /[0-9]+/'},
    {"grammar": 'start: /[a-f]/ ("true" | "trap" /[0-9]/) ("," start)?'},
    {"json_schema": {"type": "array", "items": {"enum": [True, False, 1]}, "maxItems": 3}},
    {"json_schema": {"type": "integer", "minimum": 5}},
    {"thinking_budget": 2},
    {"thinking_budget": 3, "regex": "[a-f]{2,5}"},
)
CONSTRAINED = ("grammar", "regex", "choice", "json_schema", "thinking_budget")
DRAFT_FROM_TEXTS = ("adaptive", "suffix")
BEGINNINGS = [prompt(length, seed=length) for length in (5, 12, 17)]
SCARCE = {"block_size": 4, "cache_tokens": 60, "max_sequences": 3, "max_step_tokens": 9}
PROGRAMS = {
    "native": {"program": "native", "speculate": "multi_step"},
    "native, adaptive": {"program": "native", "speculate": "adaptive", "draft_model": "q8"},
    "native, draft model": {"program": "native", "speculate": "draft_model", "draft_model": "q8"},
    "eager": {"program": "eager"},
    "eager, async": {"program": "eager", "async_scheduling": "on"},
    "eager, drafts": {"program": "eager", "speculate": "suffix"},
}


def constraints_for(tokenizer):
    """Those that the texts of a model can have: of tokens that are none there is nothing to say."""
    if tokenizer is None:
        return ({},)
    thinks = thinking_of(tokenizer.chat_template, tokenizer.control_ids) is not None
    return tuple(each for each in CONSTRAINTS if thinks or "thinking_budget" not in each)


class Quiet:
    """What an engine with room for all says, one prompt at a time, without shared rows."""

    def __init__(self, path, **settings):
        alone = {"speculate": "off", "async_scheduling": "off", "draft_model": None, "tensor_parallel": 1}
        settings = {**settings, **alone}
        self.engine = load(path, prefix_cache=False, max_length=96, threads=1, **settings)
        self.constraints = constraints_for(self.engine.core.loaded.tokenizer)
        self.adapters = {}
        self.lock, self.texts, self.scores, self.vectors, self.searches = threading.Lock(), {}, {}, {}, {}

    def text(self, tokens, sampling, adapter=None):
        key = (tuple(tokens), str(sorted(sampling.items())), adapter)
        with self.lock:
            if key not in self.texts:
                self.texts[key] = self.engine.generate(list(tokens), adapter=adapter, **sampling).tokens
            return self.texts[key]

    def says(self, tokens, sampling, found, whole=True, adapter=None):
        """Whether this engine says what was found. All programs but native compute other last bits in other batches:
        there, a token may differ where logits that differ by 1e-5 choose it too, and so may what follows it."""
        text = self.text(tokens, sampling, adapter)
        same = next((at for at, (one, other) in enumerate(zip(text, found, strict=False)) if one != other), None)
        if same is None:
            return len(found) == len(text) if whole else len(found) <= len(text)
        if self.engine.program_name == "native":
            return False
        tokens = [*tokens, *text[:same]]
        with self.lock:
            logits_V = self.engine.logits(tokens, adapter=adapter)[-1]
        params = SamplingParams(**sampling)
        mask = mask_of(self.engine, params, tokens[: len(tokens) - same], text[:same])
        row = Row(Choosing(params, params.seed or 0), len(tokens), tokens, len(tokens) - same, mask)
        noise_RV = 1e-5 * torch.randn(1000, len(logits_V), generator=torch.Generator().manual_seed(0))
        return found[same] in choose(logits_V + noise_RV, [row] * 1000).read().tokens

    def verifies(self, receipt):
        """Whether a receipt is right. Where last bits differ, a token may be one of two that are as likely."""
        with self.lock:
            found = self.engine.verify(receipt)
        return found.is_verified or (self.engine.program_name != "native" and found.verdict == "consistent")

    def score(self, tokens, choices, adapter):
        key = (tuple(tokens), tuple(map(tuple, choices)), adapter)
        with self.lock:
            if key not in self.scores:
                self.scores[key] = self.engine.score(list(tokens), choices, adapter=adapter)
            return self.scores[key]

    def search(self, tokens, width, new, adapter):
        key = (tuple(tokens), width, new, adapter)
        with self.lock:
            if key not in self.searches:
                found = self.engine.beam(list(tokens), width, max_new_tokens=new, adapter=adapter)
                self.searches[key] = [(beam.tokens, beam.score) for beam in found]
            return self.searches[key]

    def named(self, adapter):
        """The name here of an adapter of the other engine, which may have gone there."""
        if adapter is None:
            return None
        return next(name for name, each in self.engine.adapters.items() if each.digest == adapter.digest)

    def vector(self, tokens, pooling, adapter):
        key = (tuple(tokens), pooling, adapter)
        with self.lock:
            if key not in self.vectors:
                self.vectors[key] = self.engine.embed(list(tokens), pooling=pooling, adapter=adapter)
            return self.vectors[key]


def mask_of(engine, params, prompt, text):
    """The mask of the token after `text`, made from the beginning."""
    (wanted,) = engine.core.inputs.sequences(prompt, replace(params, max_new_tokens=len(text) + 1))
    wanted.tokens += text
    return Matchers().masks(Plan([Work(wanted, 0, len(wanted.tokens), 1)])).get(wanted.id, [None])[0]


class Worker:
    """One thread's random operations; each compares what it got with the quiet engine's."""

    def __init__(self, number, engine, quiet, folder, foreign):
        self.engine, self.quiet, self.folder, self.foreign = engine, quiet, folder, foreign
        self.number, self.random = number, random.Random(f"{number} {os.environ.get('TOKENMILL_LAW_14_SEED', '')}")
        self.sessions, self.counts, self.log = [], {}, []

    def tokens(self):
        """Prompts often begin alike, and sometimes are alike."""
        begin = self.random.choice(BEGINNINGS)
        more = [self.random.randrange(VOCABULARY) for _ in range(self.random.choice((0, 0, 1, 6)))]
        thinks = self.quiet.constraints is CONSTRAINTS and self.random.random() < 0.3
        return [*begin, *more, *THINK[:thinks]]

    def adapter(self):
        """One of those that both engines have, or none."""
        return self.random.choice([None, None, *self.quiet.adapters])

    def sampling(self):
        new = {"max_new_tokens": self.random.randint(1, 9), "ignore_eos": True}
        if self.random.random() < 0.4:
            new |= {"temperature": 0.9, "seed": self.random.randrange(3), "top_k": 50}
        if self.random.random() < 0.2:
            new |= {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.1}
        if self.random.random() < 0.2:  # no breakers, so that tokens are all that counts
            new |= {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ()}
        if self.random.random() < 0.3:
            new["stop_token_ids"] = (self.random.randrange(VOCABULARY),)
        constraint = self.random.choice(self.quiet.constraints)
        return new | constraint | ({"ignore_eos": self.random.random() < 0.3} if constraint else {})

    def work(self, stop):
        actions = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        while not stop():
            action = self.random.choice(actions)
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
            action()
            while len(self.sessions) > 4:  # some are closed, others left to the garbage collector
                session = self.sessions.pop(0)
                if self.random.random() < 0.5:
                    session.close()

    def do_generate(self):
        prompts, sampling = [self.tokens() for _ in range(self.random.randint(1, 3))], self.sampling()
        adapter = self.adapter()
        done = self.engine.generate(prompts, adapter=adapter, **sampling)
        for one, each in zip(prompts, done, strict=True):
            assert self.quiet.says(one, sampling, each.tokens, adapter=adapter)
        assert self.quiet.verifies(self.random.choice(done).receipt())

    def do_close_a_stream(self):
        tokens, sampling, adapter = self.tokens(), self.sampling(), self.adapter()
        stream, seen = self.engine.stream(tokens, adapter=adapter, **sampling), ()
        for piece in stream:
            seen += piece.tokens
            if self.random.random() < 0.5:
                break
        if self.random.random() < 0.5:
            stream.close()
        assert self.quiet.says(tokens, sampling, seen, whole=False, adapter=adapter)

    def do_resume_a_stream(self):
        tokens, sampling, adapter = self.tokens(), self.sampling(), self.adapter()
        stream, seen = self.engine.stream(tokens, adapter=adapter, **sampling), []
        length = self.random.randint(0, 9)
        for piece in stream:
            seen += piece.tokens
            if len(seen) > length:
                break
        stream.close()
        core = self.engine.core
        (done,) = core.finish([core.request(tokens, SamplingParams(**sampling), emitted=[seen], adapter=adapter)])
        assert list(done.tokens[: len(seen)]) == seen
        assert self.quiet.says(tokens, sampling, done.tokens, adapter=adapter)
        assert self.quiet.verifies(done.receipt())

    def do_score(self):
        tokens, choices, adapter = self.tokens(), [self.tokens()[-3:], [1], [2, 3]], self.adapter()
        found = self.engine.score(tokens, choices, adapter=adapter)
        assert found == pytest.approx(self.quiet.score(tokens, choices, adapter), abs=1e-4)

    def do_search(self):
        """Beams are forks that grow apart, in the midst of all others."""
        tokens, width, new, adapter = (
            self.tokens(),
            self.random.randint(1, 3),
            self.random.randint(1, 5),
            self.adapter(),
        )
        found = self.engine.beam(tokens, width, max_new_tokens=new, adapter=adapter)
        wanted = self.quiet.search(tokens, width, new, adapter)
        assert [beam.score for beam in found] == pytest.approx([score for _, score in wanted], abs=1e-4)
        if self.engine.program_name == "native":
            assert [beam.tokens for beam in found] == [text for text, _ in wanted]

    def do_embed(self):
        if refuse_rows(self.engine.core.loaded):  # compiled programs hand out no rows
            return
        texts, pooling = [self.tokens() for _ in range(self.random.randint(1, 3))], self.random.choice(POOLINGS)
        adapter = self.adapter()
        for vector, tokens in zip(self.engine.embed(texts, pooling=pooling, adapter=adapter), texts, strict=True):
            wanted = self.quiet.vector(tokens, pooling, adapter)
            if self.engine.program_name == "native":
                assert torch.equal(vector, wanted)
            else:
                torch.testing.assert_close(vector, wanted, rtol=1e-4, atol=1e-5)

    def do_several_with_a_deadline(self):
        tokens, sampling = self.tokens(), self.sampling()
        params = SamplingParams(**sampling)
        core = self.engine.core
        request = core.request(
            tokens, params, priority=self.random.randint(-1, 1), timeout_s=self.random.choice((0, 9))
        )
        seen = ()
        try:
            for piece in core.follow(request):
                seen += piece.tokens
        except RequestError as error:
            assert "deadline" in str(error)
        assert self.quiet.says(tokens, sampling, seen, whole=False)

    def do_other_tenant(self):
        tokens, sampling = self.tokens(), self.sampling()
        core = self.engine.core
        salt, adapter = b"tenant %d" % self.random.randint(0, 1), self.adapter()
        request = core.request(tokens, SamplingParams(**sampling), salt=salt, adapter=adapter)
        assert self.quiet.says(tokens, sampling, core.finish([request])[0].tokens, adapter=adapter)

    def do_load_an_adapter(self):
        """Under another name, which goes while a text of it is running; under a name with other bytes before."""
        if not self.quiet.adapters:
            return
        adapter, name = self.random.choice([*self.quiet.adapters]), f"of {self.number}"
        self.engine.load_adapter(name, self.quiet.adapters[adapter], replace=True)
        tokens, sampling = self.tokens(), self.sampling()
        stream = self.engine.stream(tokens, adapter=name, **sampling)
        session = self.engine.session(tokens, adapter=name)
        if self.random.random() < 0.5:
            self.engine.unload_adapter(name)
        assert self.quiet.says(tokens, sampling, [t for piece in stream for t in piece.tokens], adapter=adapter)
        self.sessions.append(session)

    def do_interrupt(self):
        """At some line of the caller's: the engine's thread gets no signal."""
        tokens, sampling = self.tokens(), self.sampling()
        try:
            with lines(self.random.randint(1, 600)) as at:
                done = self.engine.generate(tokens, **sampling)
                session = self.engine.session(tokens)
                session.generate(**sampling)
                self.sessions.append(session.fork())
        except KeyboardInterrupt:
            self.log.append(at.where)
            return
        assert self.quiet.says(tokens, sampling, done.tokens)

    def do_session(self):
        self.sessions.append(self.engine.session(self.tokens(), adapter=self.adapter()))

    def session(self):
        if not self.sessions:
            self.do_session()
        session = self.random.choice(self.sessions)
        if len(session) > 40 or not len(session):
            self.sessions.remove(session)
            return self.session()
        return session

    def answer(self, session, compare=True):
        sampling, before = dict.fromkeys(CONSTRAINED) | self.sampling(), list(session.tokens)
        sampling.setdefault("repetition_penalty", 1.0)
        sampling.setdefault("dry_multiplier", 0.0)
        # These count from where the session's own text began, which the quiet engine cannot know.
        sampling |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
        sampling.setdefault("temperature", 0.0)
        sampling.setdefault("top_k", 0)
        sampling.setdefault("seed", 0)
        sampling.setdefault("stop_token_ids", ())
        prompt = None
        if any(sampling[name] is not None for name in CONSTRAINED):
            prompt = self.tokens()[-3:]  # else a constraint that the last call had goes on with that call's text
            before += prompt
        done = session.generate(prompt, **sampling)
        assert not compare or self.random.random() < 0.5 or self.quiet.verifies(done.receipt())
        found = done.tokens
        assert not compare or self.quiet.says(before, sampling, found, adapter=self.quiet.named(session.adapter))
        assert session.tokens == (*before, *found)

    def do_answer(self):
        self.answer(self.session())

    def do_fork(self):
        other = self.session().fork()
        self.answer(other)
        self.sessions.append(other)

    def do_rewind_and_edit(self):
        session = self.session()
        session.rewind(self.random.randint(1, len(session)))
        session.edit(self.random.randint(0, len(session)), self.tokens()[-4:])
        self.answer(session)

    def do_save_and_open(self):
        session, path = self.session(), self.folder / f"{self.number}.kv"
        session.save(path)
        other = self.engine.open_session(path)
        assert other.tokens == session.tokens
        self.answer(other)
        self.answer(session)

    def do_open_what_others_computed(self):
        """Rows of another dtype: their own text may differ, and no other text may."""
        with self.engine.open_session(self.foreign, convert=True) as session:
            self.answer(session, compare=False)
            if self.random.random() < 0.5:
                session.save(self.folder / f"foreign {self.number}.kv")
                self.engine.open_session(self.folder / f"foreign {self.number}.kv").generate(max_new_tokens=2)

    def do_the_prompt_of_what_others_computed(self):
        sampling = self.sampling()
        tokens = [*BEGINNINGS[2], 7]
        assert self.quiet.says(tokens, sampling, self.engine.generate(tokens, **sampling).tokens)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_text_is_that_of_a_quiet_engine(program, llama, tmp_path):
    everything_at_once(llama, PROGRAMS[program], tmp_path)


@pytest.mark.long
def test_every_text_of_steps_by_triton(llama, tmp_path):
    """Interpreted where there is no GPU: some tokens a second, so that few operations are made."""
    pytest.importorskip("triton", reason="there is no Triton for this system")
    everything_at_once(llama, {"program": "graphs"}, tmp_path)


def tried(*parameters, quick=(), slow=()):
    """All combinations: CI tries those that are quick, and slow, which between them have every value of each parameter;
    `make test-long` tries the others, too."""
    found = []
    for case in product(*parameters) if len(parameters) > 1 else parameters[0]:
        marks = () if case in quick else pytest.mark.slow if case in slow else pytest.mark.long
        found.append(pytest.param(*(case if len(parameters) > 1 else (case,)), marks=marks))
    assert {*quick, *slow} <= {*(product(*parameters) if len(parameters) > 1 else parameters[0])}
    return found


@pytest.mark.parametrize(
    "program",
    tried(PROGRAMS, quick=("native, draft model", "eager, async"), slow=("native, adaptive", "eager, drafts")),
)
def test_every_text_of_a_model_that_gives_blocks_back(program, models, tmp_path):
    """The window of every layer has 7 tokens, and blocks have 4: whatever goes back by more is computed anew."""
    everything_at_once(save("mistral", models), PROGRAMS[program], tmp_path)


# Sinks, windows and experts; norms on both sides and two ropes; experts in groups beside shared ones; multipliers;
# parallel blocks, LayerNorm of each head and layers without rope; norms behind the blocks; query heads that differ by
# layer, with gates; values narrower than keys.
DEPARTURES = ("gpt_oss", "gemma3_text", "glm4_moe", "granitemoeshared", "cohere2", "exaone4", "laguna", "mimo_v2_flash")


@pytest.mark.slow
@pytest.mark.parametrize("program", ("native, adaptive", pytest.param("eager, async", marks=pytest.mark.long)))
@pytest.mark.parametrize("family", DEPARTURES)
def test_every_text_of_a_model_with_departures(family, program, models, tmp_path):
    everything_at_once(save(family, models), PROGRAMS[program], tmp_path)


@pytest.mark.parametrize(
    "program", tried(PROGRAMS, quick=("native, adaptive",), slow=("eager, async", "eager, drafts"))
)
def test_every_text_of_a_model_that_is_constrained(program, tmp_path):
    """Its tokens are bytes, so that grammars have something to say of them."""
    everything_at_once(save_thinking_model(tmp_path / "bytes"), PROGRAMS[program], tmp_path)


@pytest.mark.parametrize("program", tried(PROGRAMS, quick=("eager",), slow=("native, adaptive",)))
def test_every_text_of_a_model_whose_layers_differ(program, tmp_path, monkeypatch):
    everything_at_once(save_unequal(tmp_path / "unequal", monkeypatch), PROGRAMS[program], tmp_path)


@pytest.mark.parametrize("program", [pytest.param(name, marks=pytest.mark.slow) if name == "eager" else name
    for name in PROGRAMS if "eager" in name])  # fmt: skip
def test_every_text_of_a_model_whose_layers_keep_states(program, tmp_path, monkeypatch):
    everything_at_once(save_with_states(tmp_path / "summing", monkeypatch), PROGRAMS[program], tmp_path)


STATEFUL = (*HYBRIDS, "mamba2")  # the last one has no layer that keeps rows
UNCOMPILED = {"program": "compiled", "compile": "no", "compile_phases": "both", "speculate": "suffix"}


@pytest.mark.parametrize(
    ("family", "program"),
    tried(
        STATEFUL,
        PROGRAMS | {"compiled": UNCOMPILED},
        quick=[(family, "native, adaptive") for family in STATEFUL],
        slow=[
            *zip(STATEFUL, (name for name in PROGRAMS if name != "native, adaptive"), strict=True),
            ("nemotron_h", "compiled"),
        ],
    ),
)
def test_every_text_of_a_hybrid(family, program, models, tmp_path):
    """With program compiled in the shapes that it compiles, of which none is compiled."""
    everything_at_once(save(family, models), (PROGRAMS | {"compiled": UNCOMPILED})[program], tmp_path)


@pytest.mark.parametrize(
    ("program", "name", "proposer"),
    tried(
        ("native", "eager"),
        ("qwen3_5_text", "glm4_moe_lite"),
        ("adaptive", "draft_model"),
        quick=[("native", "qwen3_5_text", "adaptive")],
        slow=[
            ("native", "glm4_moe_lite", "draft_model"),
            ("eager", "qwen3_5_text", "draft_model"),
            ("eager", "glm4_moe_lite", "adaptive"),
        ],
    ),
)
def test_every_text_of_a_model_whose_own_layer_drafts(name, proposer, program, models, tmp_path):
    """Its greedy drafts are those of an engine that computes all of the text, whatever it found of it."""
    settings, made = {"program": program, "speculate": proposer, "draft_model": "mtp"}, []
    everything_at_once(save_with_mtp(name, models), settings, tmp_path, begun=lambda engine: made.append(noted(engine)))
    if made[0]:  # else the time was up before one of them
        check(name, made[0][-CHECKED:], mtp_models.drafts)


CHECKED = 200  # drafts, each of which takes the reference some milliseconds


def noted(engine):
    """Have the engine keep what its layer drafts greedily, of texts that it has computed itself."""
    params = {"temperature": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    params["dry_multiplier"] = 0.0

    def is_plain(text):
        return text.kept.is_own and all(getattr(text.choosing.params, key) == each for key, each in params.items())

    return recorded(engine, is_plain)


@pytest.mark.parametrize(
    ("program", "proposer"),
    tried(("native", "eager"), ("adaptive", "draft_model"), slow=[("native", "adaptive"), ("eager", "draft_model")]),
)
def test_every_text_of_a_model_with_an_assistant(proposer, program, models, tmp_path):
    settings = {"program": program, "speculate": proposer}
    assistant = save_assistant("gemma4_text-plain", tmp_path)
    everything_at_once(save("gemma4_text-plain", models), settings | {"draft_model": str(assistant)}, tmp_path)


def test_every_text_of_a_model_with_matrices_of_4_and_of_8_bits(llama, tmp_path):
    """Written by `quantize --target-bits`."""
    kinds = calibrated(llama, tmp_path / "mixed", algorithm="importance", target_bits=7.0).kinds
    assert {kind.stored_as for kind in kinds.values() if kind.name != "lm_head"} >= {"q4", "q8"}
    everything_at_once(tmp_path / "mixed", PROGRAMS["native, adaptive"], tmp_path)


COMPILED = {"program": "compiled", "compile": "dynamic", "compile_phases": "both", "compile_backend": "eager"}
IN_RANKS = {f"{name}, two ranks": PROGRAMS[name] | {"tensor_parallel": 2} for name in ("native", "eager")}
WITH_ADAPTERS = PROGRAMS | {"compiled": COMPILED} | IN_RANKS


@pytest.mark.parametrize(
    ("family", "program"),
    tried(
        ("llama", "mixtral", "gemma3_text", "qwen3_5_text"),
        WITH_ADAPTERS,
        quick=[("llama", "native, adaptive"), ("llama", "eager")],
        slow=[
            ("mixtral", "native"),
            ("qwen3_5_text", "native, draft model"),
            ("gemma3_text", "eager, async"),
            ("mixtral", "eager, drafts"),
            ("llama", "compiled"),
            *(("llama", name) for name in IN_RANKS),
        ],
    ),
)
def test_every_text_of_several_adapters(family, program, models, tmp_path):
    """Of the model alone, too: one on all matrices, one with the embedding, one with DoRA of a few."""
    kinds = {
        "all": {},
        "embedding": {"target_modules": ["embed_tokens", "q_proj"], "r": 3},
        "dora": {"target_modules": ["v_proj", "o_proj"], "use_dora": True, "use_rslora": True, "r": 17},
    }
    for number, (name, config) in enumerate(kinds.items()):
        save_adapter(family, tmp_path / name, seed=number, **config)
    adapters = [tmp_path / name for name in kinds]
    everything_at_once(save(family, models), WITH_ADAPTERS[program], tmp_path, adapters=adapters)


NATIVE = [name for name in PROGRAMS if "native" in name]
HALF = ("llama", "mixtral", "gpt_oss")


@pytest.mark.parametrize(("family", "program"), tried(HALF, NATIVE, slow=[*zip(HALF, NATIVE, strict=True)]))
def test_every_text_of_a_model_in_float16(family, program, tmp_path):
    """Foreign rows are those of float32, which the program computes in, too."""
    halves = {name: tensor.half() for name, tensor in reference(family).state_dict().items()}
    path = save(family, tmp_path, state_dict=halves)
    everything_at_once(path, PROGRAMS[program] | {"dtype": "float16"}, tmp_path, foreign="float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", (("Q6_K", "Q5_K", "IQ4_XS", "IQ3_S"), ("F16", "Q3_K", "Q5_0", "MXFP4", "Q8_0", "IQ4_NL"))
)
@pytest.mark.parametrize("name", gguf_files.WIDE)
def test_every_text_of_a_file_with_codes_of_several_kinds(name, kinds, tmp_path):
    """Within one model, and within the matrix that is made of those of q, k and v."""
    path = gguf_files.write_codes(tmp_path / "x.gguf", name, [gguf_files.KIND[kind] for kind in kinds])
    everything_at_once(path, PROGRAMS["native, adaptive"], tmp_path)


RANKED = ("llama", "mixtral", *UNLIKE, *HYBRIDS, "gemma3n_text", "gemma4_text")
WITH_RANKS = ("native", "native, draft model")


@pytest.mark.parametrize(
    ("family", "program"), tried(RANKED, WITH_RANKS, slow=[*zip(RANKED, 5 * WITH_RANKS, strict=True)])
)
def test_every_text_of_a_model_in_two_ranks(family, program, models, tmp_path):
    """The draft model is computed by rank 0 alone."""
    settings = PROGRAMS[program] | {"tensor_parallel": 2}
    everything_at_once(save(family, models), settings, tmp_path)


def everything_at_once(model, settings, tmp_path, foreign="bfloat16", adapters=(), begun=lambda engine: None):
    """begun: is called with the engine before its first text."""
    settings = {"dtype": "float32", **settings}
    quiet = Quiet(model, **settings)
    quiet.adapters = {path.name: path for path in adapters}
    foreign = load(model, dtype=foreign, max_length=96, program=settings["program"]).session([*BEGINNINGS[2], 7])
    foreign.save(tmp_path / "foreign.kv")
    how = {
        "max_length": 96,
        "threads": 2,
        "prefix_dir": str(tmp_path / "blocks"),
        **SCARCE,
        **settings,
    }
    if settings.get("speculate") in DRAFT_FROM_TEXTS:
        how |= {"suffix_dir": str(tmp_path / "texts"), "suffix_limit": 1}
    engine = load(model, **how)
    begun(engine)
    for name, path in quiet.adapters.items():
        for each in (engine, quiet.engine):
            each.load_adapter(name, path)
    workers = [Worker(number, engine, quiet, tmp_path, tmp_path / "foreign.kv") for number in range(THREADS)]
    run_at_once(workers, SECONDS)
    for worker in workers:
        for session in worker.sessions:
            session.close()
    engine.close()
    again = load(model, **how)  # a later process, from the blocks on disk
    for name, path in quiet.adapters.items():
        again.load_adapter(name, path)
    for tokens in BEGINNINGS:
        for adapter in (None, *quiet.adapters):
            sampling = {"max_new_tokens": 6, "ignore_eos": True}
            done = again.generate([*tokens, 9], adapter=adapter, **sampling)
            assert quiet.says([*tokens, 9], sampling, done.tokens, adapter=adapter)
