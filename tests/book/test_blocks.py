"""Every code block of the book runs in a test, or says before it why it does not."""

import shutil
import subprocess

import pytest

from tests import test_documents
from tests.book.blocks import TYPED, blocks, indented
from tests.book.markdown import DOCS
from tests.serve.conftest import served
from tests.word_model import save_chat_model

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
RUN_BY = {
    "agents.md": "tests.serve.agents.test_tool_agents",
    "batches.md": "tests.test_documents:test_the_commands_about_batches_run_as_written",
    "benchmarks.md": "tests.test_documents:test_the_benchmarks_run_as_written",
    "compiling.md": "tests.test_documents:test_the_commands_about_compiling_run_as_written",
    "evaluation.md": "tests.test_documents:test_the_commands_about_evaluation_run_as_written",
    "kv-cache.md": "tests.test_documents:test_the_commands_about_the_cache_print_what_is_written",
    "models-at-hand.md": "tests.test_documents:test_the_commands_about_models_at_hand_run_as_written",
    "ollama-api.md": "tests.serve.ollama.test_ollama_models",
    "receipts.md": "tests.test_documents:test_the_commands_about_receipts_run_as_written",
    "speculation.md": "tests.test_documents:test_the_commands_about_speculation_run_as_written",
    "structured-output.md": "tests.test_documents:test_the_commands_about_structured_output_run_as_written",
    "tour.md": "tests.test_documents:test_the_commands_of_the_tour_run_as_written",
}
"""Pages whose commands a test of their own runs, which checks more of what comes."""
SERVING, TUTORIAL = "serving.md", "tutorial.md"
"""Pages with a test of their own below."""
HERE = {
    "chatting.md": "slow",
    "coming-from-llama-cpp.md": "slow",
    "coming-from-ollama.md": "slow",
    "coming-from-vllm.md": "slow",
    "fitting.md": "slow",
    "installing.md": "slow",
    "models.md": "slow",
    "quantization.md": "long",
    "sampling.md": "slow",
    "sessions.md": "slow",
    "starting.md": "long",
    "tensor-parallel.md": "long",
}
"""Pages whose commands run below, one after the other: the marker of the test."""


def shell_blocks(name):
    return [block for block in blocks(PAGES[name]) if block.is_shell]


@pytest.mark.parametrize("name", PAGES)
def test_a_block_that_is_not_run_says_why(name):
    """An indented block would be seen by no test; a reason is a sentence."""
    assert not indented(PAGES[name])
    assert all(len(block.reason.split()) > 2 for block in blocks(PAGES[name]) if block.reason)
    for before, block in zip([None, *blocks(PAGES[name])], blocks(PAGES[name]), strict=False):
        assert block.mark != TYPED or (before.is_shell and "chat" in before.commands[-1])


def test_the_commands_of_every_page_run_somewhere():
    """A page is in one of the tables above, or each of its shell blocks says why it is not run."""
    tested = {*RUN_BY, *HERE, SERVING, TUTORIAL}
    untested = [name for name in PAGES if any(not each.reason for each in shell_blocks(name)) and name not in tested]
    assert not untested, f"give {untested} a line in RUN_BY or HERE, or `<!-- not run: REASON -->` before their blocks"


@pytest.mark.parametrize("place", [place for name, place in RUN_BY.items() if name in PAGES])
def test_what_runs_a_page_is_there(place):
    module, _, name = place.partition(":")
    path = DOCS.parent / f"{module.replace('.', '/')}.py"
    assert path.is_file()
    assert not name or hasattr(test_documents, name)


@pytest.mark.slow
@pytest.mark.model
def test_the_tutorial_runs_as_a_newcomer_types_it(shell):
    """And what it says of the texts is so: seeds repeat them, a session and a server go on with the same."""
    found = blocks(PAGES[TUTORIAL])
    for block, following in zip(found, [*found[1:], None], strict=True):
        if not block.reason and block.mark != TYPED:
            shell.run(block, following, apart=True)
    texts = shell.printed
    first, seeded, again, chat, more, _, decoded, _, asked, *_ = texts
    assert seeded == again and "Paris" in first
    assert first.split()[:4] == decoded.split()[:4] == texts[9].split()[:4] == texts[-1].split()[:4]
    assert chat.strip() and more.strip() and '"choices"' in asked


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks with curl")
def test_the_requests_of_the_page_about_serving_are_answered(tmp_path):
    asking = [block for block in shell_blocks(SERVING) if not block.reason]
    assert len(asking) > 1
    with served(save_chat_model(tmp_path), session_dir=tmp_path / "sessions") as server:
        for line in (line for block in asking for line in block.commands):
            ours = line.replace("localhost:8000", server.url.removeprefix("http://"))
            command = ["bash", "-c", f"{ours.replace('Once upon a time', 'w1 w2')} --fail-with-body -sS"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}: {done.stdout} {done.stderr}"
            assert "error" not in done.stdout


@pytest.mark.model
@pytest.mark.parametrize("name", [pytest.param(name, marks=getattr(pytest.mark, HERE[name])) for name in HERE])
def test_the_commands_of_a_page_run_as_written(name, shell):
    found = blocks(PAGES[name])
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.is_shell and not block.reason:
            shell.run(block, following)
