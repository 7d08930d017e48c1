"""What the pages "Coming from" say of tokenmill is so: their commands can be typed, their names exist, no alias is left
out.
"""

import ast
import shlex

import pytest
import transformers

import tokenmill
from tests.book import environment
from tests.book.elsewhere import of_transformers
from tests.book.elsewhere.tables import fields, is_there, options, verb_of, way_of
from tests.book.pages import COMING_FROM, MADE
from tokenmill.cli.chat.conversation import COMMANDS as CHAT_COMMANDS
from tokenmill.cli.elsewhere import llama_cpp, ollama, vllm
from tokenmill.cli.elsewhere.named import Named
from tokenmill.cli.main import main
from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.other_names import ALIASES
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

EVERY = [(kind, row) for lists in COMING_FROM.values() for kind, rows in lists.items() for row in rows]
TYPED = sorted({way_of(row) for kind, row in EVERY if verb_of(way_of(row))})
CALLS = sorted({way_of(row) for kind, row in EVERY if kind == "calls"})


def rows(*kinds):
    return [row for kind, row in EVERY if kind in kinds]


@pytest.mark.parametrize("line", TYPED)
def test_a_command_can_be_typed(line, monkeypatch, capsys, tmp_path):
    (tmp_path / "FILE").write_text("")
    (tmp_path / "presets.toml").write_text("[NAME]\n")
    monkeypatch.setenv("TOKENMILL_CONFIG", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Command, "call", lambda *_: None)
    assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("line", CALLS)
def test_a_call_names_what_there_is(line):
    """Attributes of an engine, a session and a completion, and the settings that are keywords."""
    kinds = {
        "engine": tokenmill.Engine,
        "session": tokenmill.Session,
        "done": tokenmill.Completion,
        "tokenmill": tokenmill,
        "SamplingParams": SamplingParams,
    }
    settings = {**settings_of(EngineConfig), **settings_of(SamplingParams), "max_tokens": None}
    found = 0
    for node in ast.walk(ast.parse(line)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in kinds:
            kind = kinds[node.value.id]
            assert hasattr(kind, node.attr) or node.attr in getattr(kind, "__annotations__", ()) or node.attr == "core"
            found += 1
        if isinstance(node, ast.Call):
            assert {keyword.arg for keyword in node.keywords} <= settings.keys(), line
            found += 1
    assert found


def test_options_and_settings_that_are_named_exist():
    named = {way_of(row).strip("`").split()[0] for row in rows("options", "variables") if way_of(row) not in ("", "-")}
    variables = {*environment.READ, *environment.OTHERS, "MODEL", "tokenmill"}
    assert {name.rstrip("`,") for name in named} <= {*options(), *variables}
    known = {**settings_of(EngineConfig), **settings_of(SamplingParams)}
    assert {way_of(row) for row in rows("arguments") if way_of(row) not in ("", "-")} <= known.keys()
    assert all(is_there(way_of(row)) for row in rows("routes"))
    assert {way_of(row).split()[0] for row in rows("chat") if way_of(row)[0] == "/"} <= {
        *(name.split()[0] for name in CHAT_COMMANDS),
        "/?",
    }


def test_no_alias_is_left_out():
    """An option that has another program's name, and a field of a body, is on one of the pages."""
    told = {name for row in rows("options") for name in row.names}
    assert not ALIASES.keys() - told - OF_OTHERS
    told = {name for row in rows("fields", "parameters") for name in row.names}
    assert not fields().keys() - told - FIELDS_OF_OTHERS


OF_OTHERS = {"--max-tokens", "--num-predict", "--assistant-model", "--no-prefix-caching"}
"""Names of options in mlx-lm, transformers' command line and older versions of vLLM."""
FIELDS_OF_OTHERS = {
    *("max_new_tokens", "max_output_tokens", "min_new_tokens", "repetition_penalty", "stop_sequences", "stop_words"),
    *("random_seed", "num_return_sequences", "stop_strings", "ebnf", "regex", "user", "timeout"),
    *("truncation_side", "thinking_budget", "receipt", "additional_properties"),
}
"""Names of fields in TGI, Mistral's, SGLang's and OpenAI's API and in transformers, and some of our own."""


def test_names_of_transformers_are_those_that_it_has():
    known = {*transformers.GenerationConfig().to_dict(), "assistant_model", "generate", "eta_cutoff", "stop_strings"}
    named = {name for row in of_transformers.ARGUMENTS for name in row.names}
    assert named <= known | {"dola_layers", "bad_words_ids"}


def test_a_name_that_means_something_else_is_said_so():
    """llama.cpp's --batch-size is tokens, and ours is sequences."""
    page = MADE["coming-from-llama-cpp.md"](
        "<!-- made by python -m tests.book: options -->\n<!-- end of what is made -->"
    )
    assert "**another meaning**: `--batch-size` is `--max-sequences` here" in page


def test_the_first_way_that_there_is_is_taken():
    assert way_of(Named("x", ("tokenmill nothing", "tokenmill chat"))) == "tokenmill chat"
    assert way_of(Named("x", ("GET /nothing", "GET /version"))) == "GET /version"


def test_every_list_has_rows():
    for module in (llama_cpp, of_transformers, ollama, vllm):
        assert all(module.LISTS.values())
