"""Every command that a document shows can be typed. Those that need nothing from elsewhere run as they are written."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import huggingface_hub
import pytest
import yaml

from tests.book.command_lines import CommandLines
from tests.byte_model import save_byte_model
from tests.peft_adapters import write_small_adapter
from tests.published import PUBLISHED, READ
from tests.serve.conftest import MODEL, served
from tests.word_model import save_chat_model
from tokenmill.cli.main import main
from tokenmill.cli.parser.command import Command
from tokenmill.model.config import ConfigReader
from tokenmill.model.families import find_family, read_config

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    path.name: path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}


def blocks(text, languages):
    """The fenced blocks of a document that are in one of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def shell_lines(text):
    """The lines of its shell blocks, with continued lines joined."""
    for block in blocks(text, ("", "sh", "bash", "console")):
        yield from block.replace("\\\n", " ").splitlines()


def commands(text):
    """The lines of its shell blocks that call tokenmill."""
    lines = (line.strip().removeprefix("$ ") for line in shell_lines(text))
    return [line for line in lines if re.search(r"^(.*\| )?tokenmill ", line)]


def arguments(line):
    """The words after `tokenmill`, which the verb is given, without a comment, a pipe or a redirection."""
    words = shlex.split(line, comments=True)
    words = words[words.index("tokenmill") + 1 :]
    ends = [index for index, word in enumerate(words) if word in ("|", "<", ">", "2>", "&&", ";")]
    return words[: min(ends)] if ends else words


ALL = sorted({(name, line) for name, text in DOCUMENTS.items() for line in commands(text)})


@pytest.mark.parametrize(("document", "line"), ALL)
def test_what_a_document_shows_can_be_typed(document, line, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Command, "call", lambda *_: None)  # options are read, and nothing is run
    if "--preset " in line:
        monkeypatch.setenv("TOKENMILL_CONFIG", str(tmp_path))
        (presets,) = blocks(DOCUMENTS["models-at-hand.md"], ("toml",))
        (tmp_path / "presets.toml").write_text(presets)
    assert main(arguments(line)) == 0, capsys.readouterr().err


def test_the_documents_show_commands():
    assert len(ALL) > 50
    assert {"README.md", "tour.md", "benchmarks.md", "compiling.md", "kv-cache.md"} <= {document for document, _ in ALL}


def section(title):
    """The text of one section of the tour."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCUMENTS["tour.md"], re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory, real_model, users_cache):
    """A cache of their own: limits of this machine that are measured beside other tests are not kept for later."""
    made = tmp_path_factory.mktemp("cache")
    for path in (real_model, users_cache / "peers"):
        (made / path.name).symlink_to(path)
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch, cache):
    """A folder with what the commands of the documents read, and `tokenmill` on the path."""
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "notes.txt").write_text("The mill stands beside the river.\n")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.setenv("TOKENMILL_CACHE", str(cache))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def run(folder, tm, monkeypatch):
    """Runs a line of a document in the folder, as it is written."""
    return CommandLines(folder, tm, monkeypatch)


COMPILES = re.compile("tokenmill compile|--program compiled")


@pytest.mark.slow
@pytest.mark.model
def test_the_commands_of_the_tour_run_as_written(folder, run):
    """But for `eval tasks`, which needs an extra, and what compiles: both run below.

    Three are processes: the first, one behind a pipe, and `decode`, of which the tour says that it is another one.
    They find the beginning of README.md, whose perplexity is taken twice.
    """
    (folder / "README.md").write_text(DOCUMENTS["README.md"][:1500])
    lines = [line for line in commands(section("Use it")) if "eval tasks" not in line and not COMPILES.search(line)]
    assert len(lines) > 10
    for number, line in enumerate(lines):
        by = run.as_process if number == 0 or line.startswith("tokenmill decode") else run
        by(line)


@pytest.mark.slow
@pytest.mark.model
def test_the_python_of_the_tour_runs_as_written(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    programs = blocks(section("Use it"), ("python",))
    assert programs
    for program in programs:
        exec(compile(program, "tour.md", "exec"), {})
    assert "Paris" in capsys.readouterr().out


# What a shell line of a document may begin with, beside tokenmill.
PROGRAMS = {"make", "pip", "python", "curl", "cat", "for", "done", "git", "cd"}


LINKING = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", LINKING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading_of_it(path):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_every_shell_block_is_one(document):
    """bash parses it; each of its lines calls a program, a make target or a benchmark that there is."""
    text = DOCUMENTS[document]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks(text, ("", "sh", "bash", "console")):
        subprocess.run(["bash", "-n"], input=block.replace("$ ", ""), text=True, check=True)
    for line in shell_lines(text):
        first, *others = shlex.split(line, comments=True) or ["cat"]
        if first == "make":
            assert others[0] in targets, line
        if first == "python" and others[0] != "-m":
            assert (ROOT / others[0]).is_file(), line


IN_ORDER = ("tour.md", "tutorial.md")
"""Documents whose blocks run one after the other, in tests of their own."""
SLOW = ("coming-from-transformers.md", "continuous-batching.md", "from-python.md", "one-token.md", "sessions.md")
"""Documents with so many blocks that load the model that they run with the slow tests."""


def python_blocks():
    """Every Python block of a document, as one parameter each."""
    for name, text in sorted(DOCUMENTS.items()):
        for number, block in enumerate(blocks(text, ("python",)), start=1):
            needs_harness = [pytest.mark.clients] if "lm_eval" in block else []
            is_slow = [pytest.mark.slow] if name in SLOW else []
            if name not in IN_ORDER:
                yield pytest.param(block, id=f"{name}-{number}", marks=[pytest.mark.model, *needs_harness, *is_slow])


@pytest.mark.parametrize("block", list(python_blocks()))
def test_every_python_block_runs_as_written(block, folder, monkeypatch, tmp_path_factory, capsys):
    shutil.copytree(ROOT / "examples" / "tasks", folder / "examples" / "tasks")
    monkeypatch.chdir(folder)
    for number, name in enumerate(("sql", "poems")):
        if f"adapters/{name}" in block:
            write_small_adapter(folder / "adapters" / name, 30, 576, number)  # of SmolLM2-135M
    address = "http://127.0.0.1:8000"
    keeping = {"batch_dir": tmp_path_factory.mktemp("batches")}
    if "tools=" in block:  # calls are JSON, which a model of words cannot write
        model, settings = tmp_path_factory.mktemp("bytes"), {"max_length": 4096}
        save_byte_model(model, context=4096)
    else:
        model, settings = save_chat_model(tmp_path_factory.mktemp("chat")), {}
    with served(model, settings, **keeping) if address in block else nullcontext() as server:
        if server:
            block = block.replace(address, server.url).replace("smollm2-135m", MODEL)
        names = {}
        exec(compile(block, "document", "exec"), names)
    if "print(" in block:
        assert capsys.readouterr().out.strip()
    if "MISTRAL" in names:
        assert names["MISTRAL"].names == find_family({"model_type": "mistral"}).names


# EmbeddingGemma sees later tokens, and the document leaves that out.
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in READ
        if PUBLISHED[name]["config"]["model_type"] == "gemma3_text" and name != "embeddinggemma-300m"
    ],
)
def test_the_gemma_of_a_document_is_that_of_the_registry(name, monkeypatch):
    config, names = PUBLISHED[name]["config"], {}
    block = next(block for block in blocks(DOCUMENTS["adding-a-family.md"], ("python",)) if "GEMMA3 =" in block)
    exec(compile(block, "document", "exec"), names)
    assert names["GEMMA3"].names == find_family(config).names
    ours = read_config(config)
    monkeypatch.setattr("tokenmill.model.families.find_family", lambda _: names["GEMMA3"])
    assert read_config(config) == ours


def test_values_that_a_document_shows_of_a_reader_are_those_that_it_gives():
    """docs/adding-a-family.md has a table of calls; each is made on a config that has none of the keys."""
    calls = re.findall(r"^\| `(reader\.[^`]*)`", DOCUMENTS["adding-a-family.md"], re.MULTILINE)
    config = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    defaults = {"num_local_experts": 8, "attention_bias": False, "sliding_window": 4096}
    config["num_hidden_layers"], slides, biases = 2, [True, False], {"qkv_bias": False, "o_bias": False}
    names = {"reader": ConfigReader(config, {}, defaults), "heads": 6, "window": 4096, "slides": slides}
    given = {call: eval(call, names) for call in calls}
    assert list(given.values()) == [8, 6, 1e-5, False, "silu", "layer_norm", biases, 4096, (4096, None)]


def test_every_block_of_settings_can_be_read():
    for text in DOCUMENTS.values():
        for block in blocks(text, ("toml",)):
            assert tomllib.loads(block)
        for block in blocks(text, ("yaml",)):
            assert yaml.safe_load(block)
        for block in blocks(text, ("json",)):
            assert json.loads(block)


@pytest.mark.slow
@pytest.mark.model
def test_the_commands_about_the_cache_print_what_is_written(run):
    shown = [(line, under) for line, under in pairwise(shell_lines(DOCUMENTS["kv-cache.md"])) if line.startswith("$ ")]
    assert len(shown) > 2
    for line, text in shown:
        assert run(line.removeprefix("$ ")).splitlines()[0] == text, line


@pytest.mark.slow
@pytest.mark.model
def test_the_commands_about_speculation_run_as_written(run):
    lines = commands(DOCUMENTS["speculation.md"])
    assert len(lines) > 3
    for line in lines:
        assert run(line)


@pytest.mark.slow
@pytest.mark.model
def test_the_commands_about_models_at_hand_run_as_written(folder, run, real_model, monkeypatch):
    """With the presets of the page, and a model that tokenmill would have fetched, in a cache that loses it."""
    document = DOCUMENTS["models-at-hand.md"]
    monkeypatch.setenv("TOKENMILL_CONFIG", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    (presets,) = blocks(document, ("toml",))
    (folder / "presets.toml").write_text(presets)
    monkeypatch.setenv("TOKENMILL_CACHE", str(folder / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
    (folder / "cache").mkdir()
    model = folder / "cache" / real_model.name
    shutil.copy(real_model, model)
    lines = commands(document)
    shown = {line: run(line) for line in sorted(lines, key=lambda line: " rm " in line)}
    assert len(shown) == 10 and not model.exists()
    assert any(" native " in text for line, text in shown.items() if line.startswith("tokenmill list"))
    assert any("miller" in text for text in shown.values())


@pytest.mark.slow
@pytest.mark.model
def test_the_commands_about_structured_output_run_as_written(run):
    as_json, choice, regex, grammar = (run(line).strip() for line in commands(DOCUMENTS["structured-output.md"]))
    assert json.loads(as_json).keys() == {"name", "stones"}
    assert choice in ("yes", "no") and re.fullmatch("1[0-9]{3}", regex)
    assert re.fullmatch("[a-z]{3,9} and [a-z]{3,9}", grammar)


@pytest.mark.slow
@pytest.mark.model
def test_the_refusal_that_structured_output_shows(run):
    (block,) = blocks(DOCUMENTS["structured-output.md"], ("text",))
    line, shown = block.splitlines()
    done = run.ended(line[2:])
    before, after = shown.split("…")
    assert done.returncode == 2 and before in done.stderr and after in done.stderr


@pytest.mark.slow
@pytest.mark.model
def test_the_commands_about_receipts_run_as_written(folder, run):
    made, verified, *_ = commands(DOCUMENTS["receipts.md"])
    run(made)
    assert "1 receipt: 1 verified" in run.as_process(verified)
    receipt = json.loads((folder / "tale.json").read_text())
    names = {}
    exec(compile(blocks(DOCUMENTS["receipts.md"], ("python",))[1], "document", "exec"), names)
    assert names["hash_of"](receipt) == receipt["hash"]
    said = blocks(DOCUMENTS["receipts.md"], ("text",))[0].strip()
    receipt["tokens"][7] = 5
    receipt["hash"] = names["hash_of"](receipt)
    (folder / "tale.json").write_text(json.dumps(receipt))
    done = run.ended(verified)
    assert done.returncode == 1 and said in done.stdout


@pytest.mark.long
@pytest.mark.model
def test_the_commands_about_batches_run_as_written(folder, run):
    lines = [line for line in shell_lines(DOCUMENTS["batches.md"]) if line]
    assert len(lines) == 8
    for line in lines:
        run.as_process(line)
    answer = json.loads((folder / "answers.jsonl").read_text())
    assert answer["custom_id"] == "sea" and answer["response"]["body"]["choices"][0]["text"]
    first, *_ = (folder / "judged.jsonl").read_text().splitlines()
    assert json.loads(first)["judge_generated_text"]
    with (folder / "all.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ["1", "2", "3"]


@pytest.mark.model
@pytest.mark.clients
def test_the_commands_about_evaluation_run_as_written(folder, run):
    shutil.copytree(ROOT / "examples" / "tasks", folder / "examples" / "tasks")
    lines = commands(DOCUMENTS["evaluation.md"])
    lines += [line for line in commands(section("Use it")) if "eval tasks" in line]
    assert len(lines) > 4
    for line in lines:
        assert run.as_process(line)


@pytest.mark.model
@pytest.mark.compiler
def test_the_commands_about_compiling_run_as_written(run):
    """The texts may differ: sums in bfloat16 do, and only float32 is promised the same.

    A command that the README shows as well runs once, and its others find the compiler's own cache.
    """
    compiled, made, from_package = shown = commands(DOCUMENTS["compiling.md"])
    assert run.as_process(compiled).startswith(" river, a")
    assert run.as_process(made).startswith("smollm2.aot: ")
    assert run.as_process(from_package).startswith(" river, a")
    known = {line.partition(" #")[0].strip() for line in shown}
    others = [line for line in commands(section("Use it")) if COMPILES.search(line)]
    others = [line for line in others if line.partition(" #")[0].strip() not in known]
    assert others
    for line in others:
        run.as_process(line)


def benchmarks(text):
    """The commands of a document that measure, but for `bench peers` and `bench install-peer`.

    These need engines that are downloaded and files made with them; with transformers alone it is minutes too.
    """
    return [line for line in commands(text) if not re.search("bench (peers|install-peer) ?", line)]


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("text", [section("Measure it"), DOCUMENTS["benchmarks.md"]], ids=["tour.md", "benchmarks.md"])
def test_the_benchmarks_run_as_written(run, text):
    lines = benchmarks(text)
    assert len(lines) > 5
    for line in lines:
        run.as_process(line)
