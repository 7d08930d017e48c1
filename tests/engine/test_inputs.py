"""What the engine takes as prompts and settings, and what it refuses: no value is guessed to mean something else."""

import json
import pickle
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch

import tokenmill
from tests.tiny_models import prompt
from tokenmill import ConfigError, EngineConfig, RequestError, SamplingParams, TokenmillError
from tokenmill.engine.loop import Observer


@pytest.fixture(scope="module")
def engine(llama):
    return tokenmill.load(llama, max_sequences=2)


# ---- prompts


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (b"Hello", "bytes"),
        (bytearray(b"Hello"), "bytes"),
        ([True, False], "True"),
        (None, "None"),
        (5, "5"),
        ({1: 2}, "dict"),
        (memoryview(b"Hello"), "memoryview"),
        ({3, 4}, "set"),
        (np.array(3), "ndarray"),
        (torch.tensor(3), "Tensor"),
        (torch.tensor([True]), "True"),
        ([1.5], "1.5"),
        ([None], "None"),
    ],
)
@pytest.mark.parametrize("call", ["generate", "stream", "logits", "session"])
def test_what_is_no_prompt_is_refused_by_what_it_is(engine, call, wrong, words):
    if (call, wrong) == ("session", None):
        return  # an empty session
    with pytest.raises(RequestError, match=words):
        getattr(engine, call)(wrong)


def test_ids_may_come_in_any_container_of_whole_numbers(engine):
    ids = prompt(5)
    wanted = engine.generate(ids, max_new_tokens=4).tokens
    for same in (tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(i) for i in ids]):
        assert engine.generate(same, max_new_tokens=4).tokens == wanted


def test_a_generator_of_prompts_is_a_batch(engine):
    prompts = [prompt(3), prompt(5, seed=1)]
    done = engine.generate((ids for ids in prompts), max_new_tokens=4)
    assert [each.tokens for each in done] == [each.tokens for each in engine.generate(prompts, max_new_tokens=4)]


def test_a_generator_of_ids_is_one_prompt(engine):
    assert (
        engine.generate(iter(prompt(5)), max_new_tokens=4).tokens == engine.generate(prompt(5), max_new_tokens=4).tokens
    )


@pytest.mark.parametrize("wrong", [None, 5, "w5", np.array(3), {3}, [1.5], [[1]]])
def test_tokens_before_a_prompt_are_ids(engine, wrong):
    with pytest.raises(RequestError, match=r"after|token id"):
        engine.encode([5], after=wrong)
    assert engine.encode([5], after=np.array([3, 4])) == [5]


def test_a_flag_is_true_or_false(engine):
    with pytest.raises(ConfigError, match="add_special_tokens = 'no' is not allowed: true or false"):
        engine.encode([5], "no")
    with pytest.raises(ConfigError, match="allow_special"):
        engine.chat_prompt([{"role": "user", "content": "w5"}], np.array([1, 2]))
    with pytest.raises(ConfigError, match="convert"):
        engine.open_session("x.kv", "no")


def test_an_empty_batch_is_an_empty_list(engine):
    assert engine.generate([]) == []
    assert list(engine.stream([])) == []


def test_an_empty_prompt_within_a_batch_is_named(engine):
    with pytest.raises(RequestError, match="prompt 2 of 2"):
        engine.generate([prompt(3), []])


def test_choices_are_a_list(engine):
    with pytest.raises(RequestError, match="list"):
        engine.score(prompt(3), " blue")
    with pytest.raises(RequestError, match="list"):
        engine.score(prompt(3), None)
    assert engine.score(prompt(3), []) == []


@pytest.mark.parametrize(("wrong", "words"), [([], "empty"), (5, "5 is no prompt"), ([5] * 130, "over max_length")])
def test_a_choice_that_is_refused_is_named(engine, wrong, words):
    with pytest.raises(RequestError, match=f"choice 2 of 2: .*{words}"):
        engine.score(prompt(3), [[1], wrong])
    with pytest.raises(RequestError, match=f"choice 1 of 1: .*{words}"):
        engine.score(prompt(3), [wrong])


# ---- settings


def test_settings_as_python_writes_them(engine):
    first = next(iter(engine.generate(prompt(5), max_new_tokens=1).tokens))
    for settings in (
        {"stop": None},
        {"stop_token_ids": None},
        {"logit_bias": None},
        {"seed": np.int64(5)},
        {"temperature": np.float32(0)},
        {"top_k": np.int32(4)},
        {"logit_bias": {str(first + 1): 0}},
        {"max_tokens": 1},
        {"max_tokens": np.int64(1)},
    ):
        assert engine.generate(prompt(5), **{"max_new_tokens": 1, **settings}).tokens == (first,)


def test_a_bias_of_minus_infinity_forbids_a_token(engine):
    first = engine.generate(prompt(5), max_new_tokens=1).tokens[0]
    assert engine.generate(prompt(5), max_new_tokens=1, logit_bias={first: float("-inf")}).tokens[0] != first
    for wrong in (float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="logit_bias"):
            engine.generate(prompt(5), logit_bias={first: wrong})


def test_all_tokens_forbidden_is_an_error_of_that_request(engine):
    banned = dict.fromkeys(range(engine.model_config.vocab_size), float("-inf"))
    with pytest.raises(RequestError):
        engine.generate(prompt(5), max_new_tokens=2, logit_bias=banned)
    assert engine.generate(prompt(5), max_new_tokens=2).tokens


def test_minus_one_is_until_the_end(engine):
    room = engine.config.max_length
    done = engine.generate(prompt(5), max_new_tokens=-1, ignore_eos=True)
    assert len(done.tokens) == room - 5
    with pytest.raises(ConfigError, match="max_new_tokens"):
        engine.generate(prompt(5), max_new_tokens=-2)


def test_settings_may_be_one_object_and_keywords_go_over_it(engine):
    params = SamplingParams(max_new_tokens=6, temperature=1.0, seed=3)
    wanted = engine.generate(prompt(5), max_new_tokens=6, temperature=1.0, seed=3)
    assert engine.generate(prompt(5), params).tokens == wanted.tokens
    assert engine.generate(prompt(5), params, max_new_tokens=2).tokens == wanted.tokens[:2]
    assert [t for piece in engine.stream(prompt(5), params) for t in piece.tokens] == list(wanted.tokens)
    assert engine.session(prompt(5)).generate(params=params).tokens == wanted.tokens
    with pytest.raises(ConfigError, match="SamplingParams"):
        engine.generate(prompt(5), {"temperature": 1})


def test_both_names_of_the_longest_answer_must_not_differ(engine):
    assert len(engine.generate(prompt(5), max_tokens=3).tokens) == 3
    with pytest.raises(ConfigError, match="max_tokens"):
        engine.generate(prompt(5), max_tokens=3, max_new_tokens=4)
    words = "give max_tokens or max_new_tokens, not both with different values \\(3 and 4\\)"
    with pytest.raises(ConfigError, match=words):
        SamplingParams(max_tokens=3, max_new_tokens=4)


def test_settings_objects_take_the_other_names_and_name_the_nearest(engine):
    assert SamplingParams(max_tokens=2) == SamplingParams(max_new_tokens=2) == SamplingParams(2)
    assert replace(SamplingParams(2), max_tokens=2).max_new_tokens == 2
    assert pickle.loads(pickle.dumps(SamplingParams(2))) == SamplingParams(2)
    for kind, wrong, near in ((SamplingParams, "temprature", "temperature"), (EngineConfig, "maxlength", "max_length")):
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            kind(**{wrong: 1})


def test_settings_in_a_wrong_place_are_told_the_right_one(engine):
    with pytest.raises(ConfigError, match=r"^sampling_params = 'SamplingParams' .*: the keyword is params$"):
        engine.generate(prompt(5), sampling_params=SamplingParams(2))
    for call in (engine.generate, engine.stream, engine.session().generate):
        with pytest.raises(RequestError, match=r"^settings are no prompt: give a SamplingParams as params=$"):
            call(SamplingParams(2))
    with pytest.raises(ConfigError, match=r"use tokenmill\.load"):
        tokenmill.Engine("smollm2-135m")


def test_an_engine_may_be_loaded_from_its_settings(llama):
    config = EngineConfig(model=llama, max_length=64, threads=1)
    assert tokenmill.load(config).config.max_length == 64
    engine = tokenmill.load(config, max_length=32)
    assert engine.config.max_length == 32
    assert tokenmill.load(engine.config).config == engine.config
    with pytest.raises(ConfigError, match="maxlength"):
        tokenmill.load(config, maxlength=32)


ODD = [np.array([1, 2]), np.array([]), torch.tensor([1, 2]), object(), {1: 2}, float("nan"), "x" * 300_000, [[]]]


@pytest.mark.parametrize("name", [entry.name for entry in fields(SamplingParams)])
def test_what_no_setting_can_be_is_one_line_that_names_it(engine, name):
    for value in ODD:
        if (name == "stop" and isinstance(value, str)) or (name == "logit_bias" and isinstance(value, dict)):
            continue
        with pytest.raises(TokenmillError, match="^" + name) as caught:
            engine.generate(prompt(5), **{name: value})
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="params"):
        engine.session(prompt(5)).generate(params=ODD[0])


@pytest.mark.parametrize("name", [entry.name for entry in fields(EngineConfig)])
def test_what_no_setting_of_an_engine_can_be_is_one_line_too(llama, name):
    for value in (*ODD[:-2], [[]], ""):
        with pytest.raises(TokenmillError, match=name) as caught:
            tokenmill.load(**{"model": llama, name: value})
        assert "\n" not in str(caught.value)


def test_numbers_of_numpy_are_kept_as_numbers_of_python():
    params = SamplingParams(stop_token_ids=[np.int64(3)], logit_bias={np.int64(4): np.float32(1)}, top_p=np.float32(1))
    assert json.dumps(asdict(params)) == json.dumps(
        asdict(SamplingParams(stop_token_ids=[3], logit_bias={4: 1.0}, top_p=1.0))
    )
    with pytest.raises(ConfigError, match="logit_bias"):
        SamplingParams(logit_bias={"9" * 5000: 1})


def test_unknown_settings_name_the_nearest(engine, llama):
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        engine.generate(prompt(5), temprature=1)
    with pytest.raises(ConfigError, match="did you mean 'max_length'"):
        tokenmill.load(llama, maxlength=64)


# ---- settings of the engine


def test_dtypes_of_torch_are_names_too(llama):
    assert tokenmill.load(llama, dtype=torch.float32).config.dtype == "float32"
    with pytest.raises(ConfigError, match="dtype"):
        tokenmill.load(llama, dtype=torch.int32)


def test_paths_are_texts_too(llama, tmp_path):
    assert tokenmill.load(llama, prefix_dir=tmp_path).config.prefix_dir == str(tmp_path)
    for wrong in ("x\0y", "x" * 5000, "\ud800"):
        with pytest.raises(TokenmillError, match="cannot be used"):
            tokenmill.load(llama, prefix_dir=wrong)
        with pytest.raises(TokenmillError, match="no model"):
            tokenmill.load(wrong)


def test_progress_is_a_function(llama):
    with pytest.raises(ConfigError, match="progress = True"):
        tokenmill.load(llama, progress=True)


def test_devices_of_torch_are_names_too(llama):
    assert tokenmill.load(llama, device=torch.device("cpu")).config.device == "cpu"


@pytest.mark.parametrize("threads", [512, 100_000])
def test_more_threads_than_a_machine_can_have_are_refused(llama, threads, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(ConfigError, match="threads"):
        tokenmill.load(llama, threads=threads)


def test_the_setting_that_was_given_is_blamed(llama):
    with pytest.raises(ConfigError, match=r"^max_sequences = 100000"):
        tokenmill.load(llama, max_sequences=100_000)
    with pytest.raises(ConfigError, match=r"^max_step_tokens = 4"):
        tokenmill.load(llama, max_sequences=8, max_step_tokens=4)


class Fed(Observer):
    """Counts the tokens that each step feeds."""

    def __init__(self):
        self.counts = []

    def phase(self, name, plan):
        if name == "plan":
            self.counts.append(sum(work.count for work in plan.work))


def test_a_prefix_directory_implies_small_blocks(llama, tmp_path):
    ids = prompt(100)
    watch = Fed()
    for _ in range(2):  # the second engine stands for a later process
        engine = tokenmill.load(llama, prefix_dir=str(tmp_path), speculate="off")
        assert engine.config.block_size < engine.config.max_length
        with engine.core.observed_by(watch):
            engine.generate(ids, max_new_tokens=1)
    first, second = watch.counts
    assert first == len(ids) and second <= engine.config.block_size
