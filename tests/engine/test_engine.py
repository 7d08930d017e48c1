"""The engine's faces: generate, stream, logits, score; what is refused; what one failure leaves untouched."""

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tokenmill
from tests.empty import check_empty
from tests.steps import num_fed, plans_of, poison
from tests.text.test_tokenizer import trained, write
from tests.tiny_models import CONTEXT, VOCABULARY, prompt, reference, save
from tokenmill import CapacityError, ConfigError, NoKernel, RequestError
from tokenmill.engine.outputs import hash_tokens


@pytest.fixture
def engine(llama):
    return tokenmill.load(llama)


@pytest.fixture(scope="module")
def refusing(engine_of, llama):
    """The engine of what is refused, which is empty after all of it."""
    engine = engine_of(llama)
    yield engine
    check_empty(engine.core)


def test_completion_says_what_happened(engine):
    done = engine.generate(prompt(5), max_new_tokens=7)
    assert len(done.tokens) == 7
    assert done.finish_reason == "length"
    assert done.num_prompt_tokens == 5
    assert done.hash == hash_tokens(done.tokens)
    assert done.logprobs is None


def test_hash_is_sha256_of_comma_separated_ids():
    # printf '1,22,333' | sha256sum
    assert hash_tokens([1, 22, 333]) == "89155167"


def test_times_add_up_on_a_scripted_clock(llama):
    engine = tokenmill.load(llama, speculate="off")
    ticks = itertools.count(start=10.0, step=0.5)
    engine.core.loop.clock = lambda: next(ticks)
    timing = engine.generate(prompt(5), max_new_tokens=4).timing
    assert timing.ttft_s == 0.5
    assert timing.itl_s == (0.5, 0.5, 0.5)
    assert timing.total_s == timing.ttft_s + sum(timing.itl_s) == 2.0
    assert timing.tokens_per_s == 2.0


def test_stop_ids_end_the_output_and_are_its_last_token(engine):
    free = engine.generate(prompt(5), max_new_tokens=20).tokens
    stop = free[6]
    done = engine.generate(prompt(5), max_new_tokens=20, stop_token_ids=[stop])
    assert done.finish_reason == "stop"
    assert done.tokens == free[: free.index(stop) + 1]


def test_the_models_own_end_and_ignore_eos(llama, tmp_path):
    free = tokenmill.load(llama).generate(prompt(5), max_new_tokens=20).tokens
    copy = shutil.copytree(llama, tmp_path / "model")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"eos_token_id": free[4]}))
    engine = tokenmill.load(copy)
    done = engine.generate(prompt(5), max_new_tokens=20)
    assert done.finish_reason == "eos"
    assert done.tokens == free[: free.index(free[4]) + 1]
    assert engine.generate(prompt(5), max_new_tokens=20, ignore_eos=True).tokens == free


def test_end_ids_beyond_the_vocabulary_are_ignored_with_a_warning(llama, tmp_path, caplog):
    copy = shutil.copytree(llama, tmp_path / "model")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"eos_token_id": [3, VOCABULARY, 100_000]}))
    engine = tokenmill.load(copy)
    assert f"end-of-text id {VOCABULARY}, 100000 is ignored" in caplog.text
    assert len(engine.generate(prompt(5), max_new_tokens=5, min_new_tokens=5).tokens) == 5


def test_min_new_tokens_masks_the_end(engine):
    free = engine.generate(prompt(5), max_new_tokens=20).tokens
    done = engine.generate(prompt(5), max_new_tokens=20, stop_token_ids=[free[0]], min_new_tokens=6)
    assert len(done.tokens) >= 6
    assert free[0] not in done.tokens[:6]


def test_n_continuations_use_consecutive_seeds(llama):
    engine = tokenmill.load(llama, max_sequences=3, block_size=4)
    settings = {"max_new_tokens": 9, "temperature": 1.0}
    three = engine.generate(prompt(5), n=3, seed=40, **settings)
    assert [done.seed for done in three.completions] == [40, 41, 42]
    assert [done.tokens for done in three.completions] == [
        engine.generate(prompt(5), seed=seed, **settings).tokens for seed in (40, 41, 42)
    ]


def test_without_a_seed_a_fresh_one_is_drawn_and_reported(engine):
    settings = {"max_new_tokens": 9, "temperature": 1.0}
    done = engine.generate(prompt(5), **settings)
    assert engine.generate(prompt(5), seed=done.seed, **settings).tokens == done.tokens


def test_logprobs_are_those_of_the_logits(engine):
    done = engine.generate(prompt(5), max_new_tokens=6, logprobs=2)
    expected = torch.log_softmax(engine.logits([*prompt(5), *done.tokens])[4:-1], dim=-1)
    assert len(done.logprobs) == 6
    for row, (token, entry) in enumerate(zip(done.tokens, done.logprobs, strict=True)):
        assert entry.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)  # float32 rounding of one chunk
        assert entry.top[0][0] == token
        assert len(entry.top) == 2


def test_score_is_teacher_forcing_and_computes_the_prompt_once(llama):
    engine = tokenmill.load(llama, max_step_tokens=16)
    start, choices = prompt(40), [prompt(3, 1), prompt(7, 2), prompt(1, 3)]
    plans = plans_of(engine.core)
    scores = engine.score(start, choices)
    # No last token is fed, and the row of the prompt's end tells all first tokens.
    assert sum(map(num_fed, plans)) == 40 + 2 + 6
    for choice, score in zip(choices, scores, strict=True):
        with torch.no_grad():
            logits = reference("llama")(torch.tensor([start + choice])).logits[0]
        expected = torch.log_softmax(logits[39:-1], dim=-1)[torch.arange(len(choice)), choice].sum()
        assert score == pytest.approx(float(expected), abs=1e-4)  # float32 rounding over at most 7 terms of size 5
    check_empty(engine.core)


def test_scores_and_logits_of_a_sequence_that_is_preempted_are_handed_over_once(llama):
    engine = tokenmill.load(llama, block_size=4, cache_tokens=64, max_sequences=2, max_step_tokens=2, speculate="off")
    expected = tokenmill.load(llama).logits(prompt(40))
    stream = engine.stream(prompt(12), max_new_tokens=50)
    next(stream)
    torch.testing.assert_close(engine.logits(prompt(40)), expected)
    assert engine.core.scheduler.num_preemptions > 0
    stream.close()


def test_a_stream_that_is_closed_early_gives_its_blocks_back(engine):
    stream = engine.stream(prompt(5), max_new_tokens=50)
    next(stream)
    stream.close()
    check_empty(engine.core)


def test_the_cache_is_allocated_once_and_as_predicted(llama):
    engine = tokenmill.load(llama, block_size=16, max_sequences=2)
    pool = engine.core.loaded.pool
    places = [tensor.data_ptr() for layer in pool.layers for tensor in layer.tensors]
    engine.generate([prompt(30), prompt(3)], max_new_tokens=30)
    assert [tensor.data_ptr() for layer in pool.layers for tensor in layer.tensors] == places
    predicted = engine.core.loaded.resolved.cache.num_bytes
    assert engine.memory["cache_bytes"] == pool.num_bytes == predicted == 2 * 2 * 2 * 8 * 4 * 2 * CONTEXT


def test_weights_bytes_are_those_of_the_file(llama):
    parameters = sum(parameter.numel() for parameter in reference("llama").parameters())
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        assert tokenmill.load(llama, dtype=dtype, program="eager").memory["weights_bytes"] == size * parameters


def test_several_threads_may_use_one_engine(llama):
    engine = tokenmill.load(llama, max_sequences=4, block_size=16)
    prompts = [prompt(length, 9) for length in (3, 9, 14, 20)]
    expected = [engine.generate(p, max_new_tokens=12).tokens for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda one: engine.generate(one, max_new_tokens=12).tokens, prompts)) == expected


def test_a_sequence_whose_logits_are_not_finite_fails_alone(llama):
    engine = tokenmill.load(llama, max_sequences=2, block_size=16)
    expected = engine.generate(prompt(6), max_new_tokens=8).tokens
    good = engine.stream(prompt(6), max_new_tokens=8)
    tokens = next(good).tokens
    bad = engine.stream(prompt(9), max_new_tokens=8)
    poison(engine, lambda work, _: work.sequence.num_prompt_tokens == 9)
    with pytest.raises(RequestError, match="not finite at position 9"):
        list(bad)
    tokens += sum((piece.tokens for piece in good), ())
    assert tokens == expected
    check_empty(engine.core)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dtype": "float8"}, ConfigError, r"dtype = 'float8' .*auto, float32, bfloat16, float16"),
        ({"device": "tpu9"}, ConfigError, r"device = 'tpu9' .*auto, cpu"),
        ({"device": "meta"}, ConfigError, "device = 'meta'"),
        ({"program": "warp"}, ConfigError, r"program = 'warp' .*eager"),
        ({"kernel": "rowz"}, ConfigError, r"kernel = 'rowz' .*did you mean 'rows'"),
        ({"scheme": "q3"}, ConfigError, r"scheme = 'q3' .*auto, packed, dense, q8, q4, file"),
        ({"speculate": "oracle"}, ConfigError, r"speculate = 'oracle' .*off, adaptive, multi_step, suffix"),
        ({"cache_format": "int3"}, ConfigError, r"cache_format = 'int3' .*dense"),
        ({"max_length": 4096}, ConfigError, r"max_length = 4096 .*context, 128"),
        ({"max_length": 0}, ConfigError, r"max_length = 0 .*1 or more"),
        ({"block_size": -1}, ConfigError, "block_size = -1"),
        ({"max_sequences": 600}, ConfigError, r"max_sequences = 600 .*max_step_tokens, which is 512"),
        ({"threads": True}, ConfigError, "threads = True"),
        ({"colour": "red"}, ConfigError, r"colour = 'red' .*EngineConfig has model, tokenizer, program"),
        (
            {"kernel": "rows", "block_size": 4},
            NoKernel,
            "rows: needs one block per sequence, and block_size 4 is under",
        ),
        ({"scheme": "packed", "dtype": "float16"}, ConfigError, "packed cannot multiply float16"),
    ],
)
def test_settings_that_cannot_be_are_refused_when_the_engine_is_built(llama, settings, error, message):
    if settings.get("dtype") == "float16" and torch.ops.mkldnn._is_mkldnn_fp16_supported():
        settings = {"scheme": "pack", "dtype": "float16"}  # this processor can: any refusal of a scheme will do
        message = "scheme = 'pack'"
    with pytest.raises(error, match=message) as caught:
        tokenmill.load(llama, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "settings", "error", "message"),
    [
        ([[]], {}, RequestError, "prompt is empty"),
        ([1, VOCABULARY], {}, RequestError, f"token id {VOCABULARY} is out of range: .* 0 to {VOCABULARY - 1}"),
        ([1, -1], {}, RequestError, "token id -1 is out of range"),
        ("text", {}, RequestError, "no tokenizer: give the prompt as token ids"),
        (
            [1] * CONTEXT,
            {},
            RequestError,
            rf"the prompt has {CONTEXT} tokens, and with max_length of 128 not one more fits",
        ),
        (
            [1] * 100,
            {"max_new_tokens": 60},
            RequestError,
            r"prompt of 100 tokens \+ max_new_tokens of 60 is over .* 128",
        ),
        ([1], {"stop": "x"}, RequestError, "stop texts need a tokenizer"),
        ([1], {"stop_token_ids": [999]}, RequestError, "token id 999 is out of range"),
        ([1], {"logit_bias": {999: 1.0}}, RequestError, "token id 999 is out of range"),
        ([1], {"max_new_tokens": 0}, ConfigError, "max_new_tokens = 0"),
        ([1], {"temperature": -0.5}, ConfigError, r"temperature = -0.5 .*from 0 to 100"),
        ([1], {"temperature": float("nan")}, ConfigError, "temperature = nan"),
        ([1], {"top_p": 0.0}, ConfigError, r"top_p = 0.0 .*above 0"),
        ([1], {"top_k": -3}, ConfigError, "top_k = -3"),
        ([1], {"min_p": 2}, ConfigError, "min_p = 2"),
        ([1], {"repetition_penalty": 0}, ConfigError, "repetition_penalty = 0"),
        ([1], {"seed": -1}, ConfigError, "seed = -1"),
        ([1], {"stop": ""}, ConfigError, "stop = ''"),
        ([1], {"min_new_tokens": 9, "max_new_tokens": 3}, ConfigError, r"min_new_tokens = 9 .*which is 3"),
        ([1], {"temprature": 1}, ConfigError, r"temprature = 1 .*SamplingParams has max_new_tokens"),
    ],
)
def test_prompts_and_sampling_values_that_cannot_be_are_refused(refusing, tokens, settings, error, message):
    with pytest.raises(error, match=message) as caught:
        refusing.generate(tokens, **settings)
    assert "\n" not in str(caught.value)
    assert len(refusing.generate(prompt(3), max_new_tokens=2).tokens) == 2  # and the engine goes on


def test_a_sequence_larger_than_the_pool_is_refused_and_its_batch_with_it(llama):
    engine = tokenmill.load(llama, block_size=4, cache_tokens=32, max_sequences=2)
    with pytest.raises(CapacityError, match="cache_tokens"):
        engine.generate([prompt(4), prompt(20)], max_new_tokens=20)
    check_empty(engine.core)


def test_a_tokenizer_with_more_tokens_than_the_embedding_has_rows_is_warned_of(tmp_path, caplog):
    """Their ids are refused one by one, and nothing that would never be drawn stops a request."""
    path = save("llama", tmp_path)
    write(path, trained(), bos_token="<|end|>")
    small = trained().get_vocab_size()
    assert small > VOCABULARY
    engine = tokenmill.load(path, packed_cache=False)
    assert f"the tokenizer has {small} tokens and the model {VOCABULARY}" in caplog.text
    last = engine.tokenizer.backend.id_to_token(small - 1)
    text = engine.tokenizer.decode([small - 1])
    assert engine.tokenizer.encode(text) == [small - 1], last
    with pytest.raises(
        RequestError, match=rf"token id {small - 1} is out of range: this model's ids are 0 to {VOCABULARY - 1}"
    ):
        engine.generate(text, max_new_tokens=4)
    plain = engine.generate([5, 6, 7], max_new_tokens=4)
    assert engine.generate([5, 6, 7], max_new_tokens=4, bad_words=[text.strip()]).tokens == plain.tokens
