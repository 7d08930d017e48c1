"""Which interpreter `make` takes when nobody names one, and what it installs of npm's packages."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUNS, FAILS = "exit 0", "echo command not found >&2; exit 127"


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"python3.11": RUNS, "python3.13": RUNS, "python3": RUNS}, "python3.13"),
        ({"python3.11": RUNS, "python3.12": FAILS, "python3.13": FAILS, "python3": RUNS}, "python3.11"),
        ({"python3": RUNS}, "python3"),
        ({}, "python3"),
    ],
)
def test_it_is_the_newest_that_runs(tmp_path, there, taken):
    for name, does in there.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    makefile = tmp_path / "Makefile"
    makefile.write_text((ROOT / "Makefile").read_text() + "\nwhich-python:\n\t@: $(info $(PYTHON))\n")
    command = [shutil.which("make") or "make", "--silent", "-f", str(makefile), "SHELL=/bin/sh", "which-python"]
    found = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert found.stdout == f"{taken}\n"


def test_what_npm_ci_installs_has_the_packages_of_every_platform():
    """`npm ci` of npm 11 refuses a lock file that lacks one."""
    text = (ROOT / "Makefile").read_text()
    variables = dict(re.findall(r"^(\w+) := (\S+)$", text, re.MULTILINE))
    names = re.findall(r"npm ci --prefix \$\((\w+)\)", text)
    assert names
    for name in names:
        packages = json.loads((ROOT / variables[name] / "package-lock.json").read_text())["packages"]
        there = {place.rpartition("node_modules/")[2] for place in packages}
        assert all(set(each.get("optionalDependencies", ())) <= there for each in packages.values())
