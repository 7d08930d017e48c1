"""`tokenmill prove`: the table, the document, exit codes, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from tests.prove.fake import Fake, crowds_of, running

FEW = ("--max-tokens", 4, "--concurrency", 3, "--seed", 5)


@pytest.fixture
def prove(tm, monkeypatch):
    """Runs `tokenmill prove`; gives exit code, stdout and stderr."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return partial(tm, "prove")


def test_a_right_server(prove):
    with running(Fake().app) as url:
        code, out, err = prove(url, *FEW, "--case", "again", "--case", "crowd", "--comparisons", 20)
    assert code == 0
    title, header, *rows = out.splitlines()
    assert title.startswith(f"{url}, fake: ") and title.endswith("--seed 5")
    assert header.split()[:4] == ["case", "requests", "compared", "differ"]
    assert [row.split()[0] for row in rows] == ["again", "crowd", "all"]
    assert [row.split()[3] for row in rows] == ["0", "0", "0"]
    assert "note: texts are compared by token ids" in err


def test_a_wrong_server(prove):
    with crowds_of(Fake("crowd")) as fake, running(fake.app) as url:
        code, out, _ = prove(url, *FEW, "--case", "crowd", "--comparisons", 9)
        assert code == 1
        assert "crowd: /v1/completions {'max_tokens': 4" in out and "they differ from token 0 on" in out
        assert "  alone: '" in out and "  in a crowd: '" in out
        code, out, _ = prove(url, *FEW, "--case", "crowd", "--comparisons", 9, "--json", "--quiet")
    assert code == 1
    facts = json.loads(out.splitlines()[-1])
    (case,) = facts["cases"]
    assert facts["differences"] == case["differ"] > 0 and case["by"][0]["route"] == "/v1/completions"
    assert case["first_difference"]["unit"] == "token" and case["examples"][0]["request"]["max_tokens"] == 4


def test_errors_of_the_user(prove):
    for arguments, words in [
        (["nowhere"], "URL = 'nowhere'"),
        (["http://127.0.0.1:9", "--case", "crowds"], "use again, crowd, warm"),
        (["http://127.0.0.1:9", "--case", "restart"], "only with --restart COMMAND"),
        (["http://127.0.0.1:9", "--tolerance", "0.1"], "only with --logprobs"),
        (["http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
    ]:
        code, out, err = prove(*arguments)
        assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_nothing_that_could_be_compared_is_no_pass(prove):
    with running(Fake(without=["stream"]).app) as url:
        code, out, err = prove(url, *FEW, "--case", "streamed")
    assert code == 2 and "not offered" in out
    assert "error: nothing was compared by any case before the check was ended by the end of the cases" in err


@pytest.mark.parametrize(
    ("fake", "more", "reason"),
    [
        (Fake(without=["n"]), (), "/v1/completions: n: n has no effect"),
        (Fake(without=["logprobs"]), ("--logprobs",), "no log-probabilities came that could be compared"),
    ],
    ids=["a field", "log-probabilities"],
)
def test_a_case_that_compared_nothing_is_no_pass_beside_others_that_did(prove, fake, more, reason):
    with running(fake.app) as url:
        cases = ("--case", "again", "--case", "copies", "--comparisons", 12)
        code, out, err = prove(url, *FEW, *cases, *more)
        assert code == 2 and "error: nothing was compared by " in err
        assert f"note: copies: compared nothing: {reason}" in err
        assert out.splitlines()[-1].split()[3] == "0", "what was compared is shown all the same"
        code, out, _ = prove(url, *FEW, *cases, *more, "--json", "--quiet")
    assert code == 2 and reason in json.loads(out.splitlines()[-1])["compared_nothing"]["copies"]


def test_a_bound_that_comes_before_a_case_is_said(prove):
    with running(Fake().app) as url:
        code, _, err = prove(url, *FEW, "--case", "again", "--case", "crowd", "--comparisons", 1)
    assert code == 2 and "note: crowd: compared nothing: --comparisons 1 came before it had compared a text" in err


def test_a_restart_that_nothing_can_do_is_left_out_and_named(prove):
    with running(Fake().app) as url:
        facts = prove(url, *FEW, "--requests", 400, "--json", "--quiet")[1]
        assert "restart" not in json.loads(facts.splitlines()[-1])["compared_nothing"]
        assert "restart: left out: give --restart COMMAND" in json.loads(facts.splitlines()[-1])["notes"]


PROGRAM = """
import sys
from tokenmill.cli.main import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.slow
def test_ctrl_c_shows_what_was_found_and_torch_is_not_imported():
    fake = Fake()
    with running(fake.app) as url:
        command = [sys.executable, "-c", PROGRAM, "prove", url, *map(str, FEW), "--json", "--requests", "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            while fake.num_posts < 150:
                assert child.poll() is None
                time.sleep(0.01)
            os.kill(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=600)
    assert child.returncode == 130, err
    facts = json.loads(out.splitlines()[-1])
    assert facts["interrupted"] and facts["comparisons"] and facts["differences"] == 0
