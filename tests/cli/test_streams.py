"""Standard streams that are closed or full, warnings, and Ctrl-C while modules are imported."""

import os
import subprocess
import sys

import pytest

from tokenmill.cache.header import read_facts

COMMAND = [sys.executable, "-m", "tokenmill"]
GENERATE = "generate {model} --tokens 1,2,3 -n 3"
INFO = "info {model}"


def shell(line, model, redirection):
    """Runs a command line of ours with what the shell does to its streams."""
    command = f'exec "$0" "$@" {redirection}'
    arguments = [*COMMAND, *line.format(model=model).split()]
    return subprocess.run(["/bin/sh", "-c", command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("line", [GENERATE, "--help", "generate --help", "--version"])
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">&-", "Bad file descriptor"), ("> /dev/full", "No space left on device")]
)
def test_stdout_that_cannot_be_written_is_one_line_and_exit_code_2(wordless, line, redirection, reason):
    done = shell(line + (" -q" if line == GENERATE else ""), wordless, redirection)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: stdout cannot be written: {reason}\n"


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["<&- 2>&-", "2> /dev/full"])
def test_a_stderr_that_cannot_be_written_costs_nothing(wordless, redirection):
    done = shell(GENERATE, wordless, redirection)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == 3


@pytest.mark.slow
def test_a_file_that_is_opened_is_not_taken_for_a_closed_stream(wordless, tmp_path):
    """The file that is written gets the lowest free number: it must not be 1 or 2."""
    file = tmp_path / "x.kv"
    done = shell(f"prefill {{model}} --tokens 1,2,3 -q -o {file}", wordless, "<&- >&- 2>&-")
    assert done.returncode == 0
    assert read_facts(file)["tokens"][:3] == [1, 2, 3]
    assert shell("prefill {model}", wordless, "<&- >&- 2>&-").returncode == 2


WARNED = """
import warnings
import tokenmill.cli.main as main
main.main = lambda _: warnings.warn("no more blocks\\nare kept", stacklevel=2)
main.run()
"""


def test_a_warning_is_one_line(wordless):
    done = subprocess.run([sys.executable, "-c", WARNED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "warning: no more blocks are kept\n")


@pytest.mark.slow
def test_a_full_disk_under_prefix_dir_is_one_line(wordless, tmp_path):
    """A limit on the size of files is a disk that is full. torch is there before it, because dill, which torch imports
    where it is installed, writes a file then."""
    code = (
        "import resource, torch; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); import tokenmill.cli.main as verbs"
    )
    code += "; verbs.run()"
    arguments = f"generate {wordless} --tokens 1,2,3,4,5,6,7,8 -n 3 --block-size 4 --prefix-dir {tmp_path / 'blocks'}"
    command = [sys.executable, "-c", code, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.split())) == (0, 3)
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("warning: no more blocks are kept in ")]
    assert len(lines) == 3  # loading, the warning, the figures


# Sends the signal when a module is looked for, and swallows what comes of it, as numpy does.
INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
from tokenmill.cli.main import run
run()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "module"),
    [
        (GENERATE, "torch"),
        (INFO, "numpy"),
        ("eval perplexity {model} {model}/config.json", "torch"),
        ("bench machine", "torch"),
    ],
)
def test_ctrl_c_during_the_imports_is_not_lost(wordless, line, module):
    command = [sys.executable, "-c", INTERRUPTED.replace("MODULE", module), *line.format(model=wordless).split()]
    environment = os.environ | {"TOKENMILL_CACHE": wordless}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr and "error" not in done.stderr


def test_ctrl_c_before_the_command_line_is_there():
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from tokenmill.cli.process.start import run
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("module", ["tokenmill.settings.engine_config", "tokenmill.cli.main"])
@pytest.mark.parametrize(
    "how", ["from tokenmill.cli.process.start import run; run()", "runpy.run_module('tokenmill', None, '__main__')"]
)
def test_ctrl_c_while_our_own_modules_are_imported(module, how):
    code = f"""
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
{how}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nothing_is_imported_before_ctrl_c_is_guarded():
    """An interrupt while any other module is imported would show a traceback."""
    imported = "import tokenmill.cli.process.start"
    code = f"import sys; before = {{*sys.modules}}; {imported}; print(*sorted({{*sys.modules}} - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "tokenmill",
        "tokenmill.cli",
        "tokenmill.cli.process",
        "tokenmill.cli.process.start",
        "tokenmill.process",
        "tokenmill.version",
    ]


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_ignored(wordless):
    """So it is under nohup, and for a command that a script has put into the background."""
    code = INTERRUPTED.replace("signal.default_int_handler", "signal.SIG_IGN")
    command = [sys.executable, "-c", code, *GENERATE.format(model=wordless).split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and len(done.stdout.split()) == 3


@pytest.mark.parametrize("verb", ["generate", "chat", "info", "pull", "decode"])
def test_a_prompt_that_is_too_long_for_a_name_is_one_line(refused, verb):
    err = refused(verb, "Once upon a time. " * 20)
    assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("verb", ["prefill", "profile", "pack", "quantize", "compile"])
def test_an_output_whose_name_is_too_long_is_one_line(refused, verb, wordless, tmp_path):
    where = {"prefill": ["-p", "w1"], "profile": ["-n", "2"], "quantize": ["--scheme", "q8"]}.get(verb, [])
    err = refused(verb, wordless, *where, "-q", "-o", tmp_path / ("x" * 300))
    assert err.startswith("error: ") and err.count("\n") == 1
