"""`info`, `plan` and `list` answer in a process that never imports torch, with what they say where it is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import gguf_files
from tests.marks import needs_native
from tests.tiny_models import save
from tokenmill.cli.main import main

PROGRAM = """
import json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is imported")

if sys.argv[1] == "refused":
    sys.meta_path.insert(0, Refuse())

from tokenmill.cli.main import main

for arguments in json.loads(sys.argv[2]):
    assert main(arguments) == (2 if arguments[0] == "rm" else 0), arguments
assert "torch" not in sys.modules
"""
# These differ from moment to moment.
MEMORY = ("available_bytes", "longest_that_fits", "most_sequences_that_fit", "largest_cache_that_fits")

pytestmark = [
    pytest.mark.slow,
    needs_native,
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory, one that is quantised, a GGUF file and a packed model."""
    folder = tmp_path_factory.mktemp("models")
    source, coded, gguf, packed = save("qwen2", folder), folder / "q4", folder / "tiny.gguf", folder / "tiny.packed"
    assert main(["quantize", str(source), "--scheme", "q4", "-o", str(coded), "--quiet"]) == 0
    gguf_files.write(gguf, "llama")
    assert main(["pack", str(source), "-o", str(packed), "--quiet"]) == 0
    return [str(path) for path in (source, coded, gguf, packed)]


@pytest.mark.parametrize("how", ["absent", "refused"])
def test_info_plan_and_list_answer_without_torch(how, models, capsys, monkeypatch):
    commands = [[verb, model, "--json"] for model in models for verb in ("info", "plan")]
    commands += [["info", models[0], "--tensors", "--json"], ["plan", models[0], "--json", "--dtype", "bfloat16"]]
    monkeypatch.setenv("TOKENMILL_MODELS", str(Path(models[0]).parent))
    commands += [["list", "--json"], ["rm", "nothing"], ["presets", "--json"]]
    capsys.readouterr()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, json.dumps(commands)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for arguments in commands:
        assert main(arguments) == (2 if arguments[0] == "rm" else 0)
    here = capsys.readouterr().out
    assert _facts(done.stdout) == _facts(here)


def _facts(text):
    documents = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in each.items() if key not in MEMORY} for each in documents]
