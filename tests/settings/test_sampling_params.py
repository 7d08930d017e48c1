"""Settings of a sequence: their limits on both sides, those that exclude each other, what they need of the loop."""

import math

import pytest

from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import CONSTRAINTS
from tokenmill.settings.field import Shown, settings_of
from tokenmill.settings.sampling_params import ALIASES, HTTP_FIELDS, SamplingParams

# The lowest and the highest that is allowed, and what lies just outside; None where there is no such limit.
LIMITS = {
    "max_new_tokens": (-1, None, -2, None),
    "min_new_tokens": (0, None, -1, None),
    "temperature": (0, 100, -0.01, 100.01),
    "top_k": (-1, None, -2, None),
    "top_p": (1e-9, 1, 0, 1.01),
    "min_p": (0, 1, -0.01, 1.01),
    "top_n_sigma": (-1, 100, -1.1, 100.1),
    "xtc_probability": (0, 1, -0.01, 1.01),
    "xtc_threshold": (0, 1, -0.01, 1.01),
    "repetition_penalty": (0.01, 100, 0.009, 100.1),
    "presence_penalty": (-100, 100, -100.1, 100.1),
    "frequency_penalty": (-100, 100, -100.1, 100.1),
    "seed": (0, 2**63 - 1, -1, 2**63),
    "logprobs": (0, 1000, -1, 1001),
    "n": (1, 1000, 0, 1001),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name):
    lowest, highest, below, above = LIMITS[name]
    for value in (lowest, highest):
        if value is not None:
            assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (below, above):
        if value is not None:
            with pytest.raises(ConfigError, match=rf"^{name} = {value} is not allowed: a "):
                SamplingParams(**{name: value})


def test_nothing_is_changed_by_default():
    """Greedy, one continuation, and no setting that says otherwise."""
    params = SamplingParams()
    given = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
    assert given == {
        **dict.fromkeys(("max_new_tokens", "allowed_token_ids", "seed", "logprobs", "thinking_budget", *CONSTRAINTS)),
        "top_n_sigma": 0.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "min_new_tokens": 0,
        "additional_properties": False,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ("\n", ":", '"', "*"),
        "logit_bias": {},
        "bad_words": (),
        "stop": (),
        "include_stop": False,
        "stop_token_ids": (),
        "ignore_eos": False,
        "skip_special_tokens": True,
        "shown_token_ids": (),
        "n": 1,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allowed_token_ids": []}, r"allowed_token_ids = \[\] is not allowed: at least one id; without the setting"),
        ({"bad_words": ["a"] * 1001}, "bad_words = '1001 words' is not allowed: at most 1000 words"),
        (
            {"stop": ["a" * 5000, "b" * 5001]},
            "stop = 'texts of 10,001 characters' is not allowed: at most 10,000 in all",
        ),
        ({"max_new_tokens": 0}, "max_new_tokens = 0 is not allowed: 1 or more; or -1 for all that the context leaves"),
        ({"max_new_tokens": 4, "min_new_tokens": 5}, "min_new_tokens = 5 is not allowed: at most max_new_tokens, .* 4"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_token_ids": [0]},
        {"bad_words": ["a"] * 1000},
        {"stop": ["a" * 5000, "b" * 5000]},
        {"max_new_tokens": 1},
        {"max_new_tokens": 4, "min_new_tokens": 4},
        {"max_new_tokens": -1, "min_new_tokens": 10**9},
        {"min_new_tokens": 10**9},
    ],
    ids=",".join,
)
def test_settings_that_can_be(settings):
    params = SamplingParams(**settings)
    assert all(getattr(params, name) == (tuple(v) if isinstance(v, list) else v) for name, v in settings.items())


@pytest.mark.parametrize(
    ("settings", "looks_back", "changes_logits"),
    [
        ({}, False, False),
        ({"temperature": 1.0, "top_k": 5, "seed": 3}, False, False),
        ({"logprobs": 0}, True, False),
        ({"bad_words": ["a"]}, True, False),
        ({"repetition_penalty": 1.1}, True, False),
        ({"repetition_penalty": 0.9}, True, False),
        ({"presence_penalty": -0.5}, True, False),
        ({"frequency_penalty": 0.5}, True, False),
        ({"logit_bias": {5: -math.inf}}, False, True),
        ({"allowed_token_ids": [5]}, False, True),
    ],
    ids=str,
)
def test_what_a_choice_needs(settings, looks_back, changes_logits):
    params = SamplingParams(**settings)
    assert (params.looks_back, params.changes_logits) == (looks_back, changes_logits)


def test_other_names():
    """OpenAI's max_tokens in Python; in a body each setting has one field, but logprobs and constraints."""
    assert ALIASES == {"max_tokens": "max_new_tokens"}
    assert SamplingParams(max_tokens=3) == SamplingParams(max_new_tokens=3)
    renamed = {name: field for name, field in HTTP_FIELDS.items() if name != field}
    assert renamed == {
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "include_stop": "include_stop_str_in_output",
    }
    assert SamplingParams.__dataclass_fields__.keys() - HTTP_FIELDS.keys() == {
        "logprobs",
        "shown_token_ids",
        *CONSTRAINTS,
    }


TOLD = settings_of(SamplingParams)


def test_where_each_setting_is_shown():
    """On the page the few that people change most come first; /set takes what fits on a line of a chat."""
    assert {name: told.page for name, told in TOLD.items() if told.page is not None} == {
        "temperature": Shown("Temperature", 0),
        "top_p": Shown("Top p", 0),
        "top_k": Shown("Top k", 1),
        "min_p": Shown("Min p", 1),
        "top_n_sigma": Shown("Top n sigma", 1),
        "xtc_probability": Shown("XTC probability", 1),
        "xtc_threshold": Shown("XTC threshold", 1),
        "repetition_penalty": Shown("Repetition penalty", 1),
        "dry_multiplier": Shown("DRY multiplier", 1),
        "max_new_tokens": Shown("Most new tokens", 2, "what fits"),
        "seed": Shown("Seed", 2, "random"),
    }
    not_in_chat = """logit_bias allowed_token_ids stop_token_ids skip_special_tokens shown_token_ids logprobs n
        additional_properties dry_sequence_breakers""".split()
    assert {name for name, told in TOLD.items() if not told.in_chat} == {*not_in_chat, *CONSTRAINTS}


def test_what_depends_on_drawing_and_on_earlier_tokens():
    stages = {stage: [name for name, told in TOLD.items() if told.stage == stage] for stage in ("draw", "penalty")}
    plain, others = ["temperature", "top_k", "top_p", "min_p"], ["top_n_sigma", "xtc_probability", "xtc_threshold"]
    assert stages["draw"] == plain + others
    dry = ["dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"]
    assert stages["penalty"] == ["repetition_penalty", "presence_penalty", "frequency_penalty", *dry]


def test_what_files_of_a_model_may_recommend():
    """The keys of llama.cpp's general.sampling."""
    found = {name: told.model_files for name, told in TOLD.items() if told.model_files}
    keys = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    keys |= {name: name for name in ("xtc_probability", "xtc_threshold")}
    assert found == keys | {"repetition_penalty": "penalty_repeat"}
