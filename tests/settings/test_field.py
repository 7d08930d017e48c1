"""A setting is one field: every face has it, and type checkers know it as a keyword."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, get_type_hints

import pytest
from mypy import api

from tokenmill.errors import ConfigError
from tokenmill.serve.openai.parse import ChatBody, CompletionBody
from tokenmill.settings.constraint import CONSTRAINTS
from tokenmill.settings.engine_config import EngineConfig, EngineKeywords
from tokenmill.settings.field import (
    Setting,
    Shown,
    aliases_of,
    by_any_name,
    check_fields,
    setting,
    setting_of,
    settings_of,
)
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingKeywords, SamplingParams

TAKES = {
    str | None: str | PathLike[str] | None,
    tuple[str, ...]: str | Sequence[str] | None,
    tuple[str, ...] | None: str | Sequence[str] | None,
    tuple[int, ...]: Sequence[int] | None,
    tuple[int, ...] | None: Sequence[int] | None,
    Mapping[int, float]: Mapping[int, float] | Mapping[str, float] | None,
}
"""The type of a field → what its check takes."""


@pytest.mark.parametrize(("kind", "keywords"), [(EngineConfig, EngineKeywords), (SamplingParams, SamplingKeywords)])
def test_the_keywords_are_the_fields_and_their_aliases(kind, keywords):
    wanted = {entry.name: TAKES.get(entry.type, entry.type) for entry in fields(kind) if entry.name != "model"}
    wanted |= {alias: wanted[name] for alias, name in aliases_of(kind).items()}
    wanted |= dict.fromkeys(wanted.keys() & {"dtype", "device"}, Any)  # those of torch
    wanted |= dict.fromkeys(wanted.keys() & {"json_schema"}, Any)  # mappings, classes
    wanted |= dict.fromkeys(wanted.keys() & {"regex", "grammar"}, str | None)  # a path is not taken for its name
    assert get_type_hints(keywords) == wanted


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_a_body_has_the_fields_of_the_settings(body):
    assert set(HTTP_FIELDS.values()) <= body.model_fields.keys()
    assert set(HTTP_FIELDS) == {entry.name for entry in fields(SamplingParams)} - {
        "logprobs",
        "shown_token_ids",
        *CONSTRAINTS,
    }


def test_a_field_is_checked_by_its_type_and_limits_under_all_of_its_names():
    @by_any_name
    @dataclass(frozen=True)
    class One:
        wide: int | None = setting(None, "Inches.", minimum=2, maximum=9, aliases=("width",))

        def __post_init__(self):
            check_fields(self)

    assert One(width=3) == One(wide=3) == One(3)
    for wrong in (1, 10, 2.5, "3", True):
        with pytest.raises(ConfigError, match=r"^wide = .* is not allowed: a whole number from 2 to 9$"):
            One(wide=wrong)
    with pytest.raises(ConfigError, match="did you mean 'wide'"):
        One(wid=3)
    with pytest.raises(ConfigError, match="give wide or width, not both"):
        One(wide=3, width=4)


def test_a_name_that_no_registry_has_is_refused_with_the_one_that_is_meant():
    with pytest.raises(ConfigError, match=r"use one of auto, off, .* \(did you mean 'suffix'\?\)"):
        EngineConfig(speculate="ngram")


@by_any_name
@dataclass(frozen=True)
class Two:
    """Settings of every kind, with one field that is none."""

    name: str = setting("auto", "One of {names}.", names={"a": "first", "b": "second"}, aliases=("title", "label"))
    sizes: tuple[int, ...] = setting(tuple, "Some.", options=("-s",), page=Shown("Sizes", 2))
    width: int | None = setting(None, "Inches.", maximum=9000, aliases=("inches",))
    part: float = setting(0.5, "", minimum=0, maximum=1, exclusive=True)
    plain: int = 3

    def __post_init__(self):
        check_fields(self)


def test_what_a_field_tells():
    told = settings_of(Two)
    assert list(told) == ["name", "sizes", "width", "part", "plain"]
    assert told["name"].help == "One of auto, a or b." and told["name"].aliases == ("title", "label")
    assert told["sizes"] == Setting("Some.", options=("-s",), page=Shown("Sizes", 2, "server's"))
    assert told["width"].limits == {"maximum": 9000}
    assert told["part"].limits == {"minimum": 0, "maximum": 1, "exclusive": True}
    assert told["plain"] == Setting() == setting_of(fields(Two)[4])
    assert Setting().in_chat is True and Setting().page is None and Setting().http == ""
    assert aliases_of(Two) == {"title": "name", "label": "name", "inches": "width"}


def test_fields_are_stored_as_their_checks_give_them():
    two = Two(sizes=[1, 0], width=None, plain=7)
    assert (two.sizes, two.width, two.plain, two.name) == ((1, 0), None, 7, "auto")
    assert Two("b") == Two(label="b") == Two(name="b", label="b")
    assert Two(width=5000, inches=int("5000")).width == 5000, "the same value twice"
    for wrong, said in (
        ({"part": 0}, "part = 0 is not allowed: a number above 0 and up to 1"),
        ({"width": 9001}, "width = 9001 is not allowed: a whole number from 1 to 9000"),
        ({"plain": 0}, "plain = 0 is not allowed: a whole number, 1 or more"),
        ({"plain": None}, "plain = None is not allowed: a whole number, 1 or more"),
        ({"name": "c"}, "name = 'c' is not allowed: use one of auto, a, b"),
        (
            {"title": "a", "label": "b"},
            "label = 'b' is not allowed: give title or label, not both with different values",
        ),
        ({"novel": 1}, "novel = 1 is not allowed: no such setting; Two has name, sizes, width, part, plain"),
    ):
        with pytest.raises(ConfigError) as raised:
            Two(**wrong)
        assert str(raised.value).startswith(said)


SNIPPET = """
from tokenmill import load
engine = load("smollm2-135m", max_length=64, dtype="float32")
engine.generate("a", max_tokens=3, stop=["b"], logit_bias={5: -1.0}, n=2)
load(max_lenght=64)
engine.generate("a", temprature=1.0)
engine.session().generate("a", top_k="many")
"""


@pytest.mark.long
def test_a_type_checker_knows_the_keywords(tmp_path):
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    said, _, _ = api.run([str(file), "--no-error-summary", "--hide-error-context"])
    lines = {line.partition(": error: ")[0].rpartition(":")[2] for line in said.splitlines() if ": error: " in line}
    assert lines == {"5", "6", "7"}, said
