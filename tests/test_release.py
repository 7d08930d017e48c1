"""What a release says of itself: one version everywhere, and an SBOM and licences for what others have written."""

import json
import re
import tomllib
from hashlib import sha256
from pathlib import Path

import yaml

import tokenmill

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "src" / "tokenmill" / "serve" / "facts" / "static" / "vendor"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["project"]["dynamic"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/tokenmill/version.py"


def test_the_sbom_has_the_vendored_files():
    (path,) = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["sbom-files"]
    bom = json.loads((ROOT / path).read_text())
    assert bom["metadata"]["component"]["version"] == tokenmill.__version__
    found = {(each["name"], each["version"], each["hashes"][0]["content"]) for each in bom["components"]}
    rows = re.findall(r"^\| (\S+\.mjs) \| (\S+), \S+ \| (\S+) \|", (VENDOR / "README.md").read_text(), re.MULTILINE)
    assert found == {(name, version, sha256((VENDOR / file).read_bytes()).hexdigest()) for file, name, version in rows}
    assert {file for file, _, _ in rows} == {file.name for file in VENDOR.glob("*.mjs")}


def test_each_vendored_package_has_its_licence_in_the_wheel():
    files = [file for pattern in PROJECT["project"]["license-files"] for file in ROOT.glob(pattern)]
    assert {file.name for file in files} == {"LICENSE", "LICENSE-dompurify", "LICENSE-marked.md"}


def test_cibuildwheel_builds_for_what_the_workflow_has_machines_for():
    config = PROJECT["tool"]["cibuildwheel"]
    assert (config["linux"]["archs"], config["macos"]["archs"]) == (["x86_64", "aarch64"], ["arm64"])
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    assert len(workflow["jobs"]["wheels"]["strategy"]["matrix"]["runner"]) == 3


def test_the_page_says_what_never_ran():
    page = (ROOT / "docs" / "releasing.md").read_text()
    assert "It has never run." in page and re.search(r"^\| macOS, arm64 .*\| everything \|$", page, re.MULTILINE)
