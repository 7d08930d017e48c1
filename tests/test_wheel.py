"""What a release consists of: a wheel that runs where there is no compiler, and an sdist that holds what it needs.

`make test-wheel` runs these. The wheel is built from this checkout, whose library `make` has compiled before, and
installed into an environment that sees the packages of this one but neither the checkout nor a compiler.
"""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import tokenmill
from tokenmill.bench.golden import GOLDEN
from tokenmill.kernels import native_library

ROOT = Path(__file__).parents[1]
PACKAGES = Path(pytest.__file__).parents[1]
LIBRARY = "tokenmill/kernels/libtokenmill.so"

pytestmark = pytest.mark.wheel

GENERATE = """
import json, sys, tokenmill
from tokenmill.bench.golden import GOLDEN, NEW_TOKENS, check_text, token_ids
texts = GOLDEN["smollm2-135m"]
def load(**settings):
    return tokenmill.load(sys.argv[1], program="native", threads=2, max_length=128, **settings)
with load() as engine:
    said = check_text(engine, texts)
with load(dtype="float32", scheme="dense") as engine:
    right = {
        prompt: list(engine.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True).tokens) == token_ids(text)
        for prompt, text in texts.items()
    }
print(json.dumps({"file": tokenmill.__file__, "path": sys.path, "file's": said, "right": right}))
"""


def hatchling(target, to, at=ROOT, **variables):
    """Build a wheel or an sdist into a folder of its own: the file, and what was said."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)]
    done = subprocess.run(command, cwd=at, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = to.iterdir()
    return file, done.stderr


def without_compilers(folder):
    """A PATH that has no compiler, nor anything else."""
    (folder / "empty").mkdir(exist_ok=True)
    return str(folder / "empty")


def names_in(wheel):
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def text_in(wheel, name):
    with zipfile.ZipFile(wheel) as opened:
        return opened.read(name).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder):
    """The repaired one, whose name tells the oldest C library that it runs with."""
    raw, _ = hatchling("wheel", folder / "raw")
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(raw)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(folder):
    """An unpacked one: there is no git in it."""
    packed, _ = hatchling("sdist", folder / "sdist")
    with tarfile.open(packed) as opened:
        opened.extractall(folder, filter="data")
    return folder / packed.name.removesuffix(".tar.gz")


def environment(at):
    """An environment that finds the packages of this one, but not what its .pth files name: no checkout."""
    venv.create(at, with_pip=False)
    (site,) = at.glob("lib/python3*/site-packages")
    (site / "others.pth").write_text(f"{PACKAGES}\n")
    return at / "bin" / "python"


def install(python, wheel):
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(folder, wheel):
    """The Python of an environment with the wheel."""
    python = environment(folder / "installed")
    install(python, wheel)
    return python


def run(python, *arguments, at, **variables):
    """What a program of the environment says, with no compiler in its PATH."""
    variables = {"PATH": without_compilers(at), "HOME": str(at), "TOKENMILL_CACHE": str(at / "cache"), **variables}
    done = subprocess.run([python, *arguments], cwd=at, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_name_says_any_python_three_and_a_c_library_as_old_as_torchs(wheel):
    """torch's own wheels need glibc 2.28."""
    version, old = re.fullmatch(r"tokenmill-(.+)-py3-none-manylinux_2_(\d+)_\w+\.whl", wheel.name).groups()
    assert version == tokenmill.__version__ and int(old) <= 28


def test_it_holds_the_package_and_nothing_else(wheel):
    names = {name for name in names_in(wheel) if not name.endswith("/")}
    tracked = subprocess.run(["git", "ls-files", "src/tokenmill"], cwd=ROOT, capture_output=True, text=True, check=True)
    package = {line.removeprefix("src/") for line in tracked.stdout.splitlines()} | {LIBRARY}
    assert {name for name in names if name.startswith("tokenmill/")} == package
    info = f"tokenmill-{tokenmill.__version__}.dist-info"
    licences = {name.rsplit("/", 1)[1] for name in names if name.startswith(f"{info}/licenses/")}
    assert licences == {"LICENSE", "LICENSE-dompurify", "LICENSE-marked.md"}
    others = {name for name in names - package if not name.startswith(f"{info}/licenses/")}
    assert others == {
        f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "sboms/tokenmill.cdx.json")
    }


def test_its_metadata_are_those_of_this_version(wheel):
    info = f"tokenmill-{tokenmill.__version__}.dist-info"
    said = email.message_from_string(text_in(wheel, f"{info}/METADATA"))
    assert said["Version"] == tokenmill.__version__ and said["Requires-Python"] == ">=3.11"
    assert (
        json.loads(text_in(wheel, f"{info}/sboms/tokenmill.cdx.json"))["metadata"]["component"]["version"]
        == said["Version"]
    )
    assert "Root-Is-Purelib: false" in text_in(wheel, f"{info}/WHEEL")


def test_an_older_python_is_refused_with_the_reason(wheel, tmp_path):
    """pip is asked as one of Python 3.10 would be; `download` alone looks at another version than its own."""
    options = ["--no-deps", "--no-index", "--only-binary=:all:", "--dest", str(tmp_path)]
    command = [sys.executable, "-m", "pip", "download", *options, "--python-version", "3.10", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and "requires a different Python" in done.stderr and ">=3.11" in done.stderr


def test_the_command_tells_its_version_and_its_library(installed, folder):
    said = run(installed.with_name("tokenmill"), "--version", at=folder).splitlines()
    assert said[0] == f"tokenmill {tokenmill.__version__}"
    assert said[1].startswith(f"native library: {native_library.best_build()}, ABI {native_library.ABI}, built from ")


def test_it_gives_the_golden_texts_with_the_native_program(installed, folder, real_model):
    said = json.loads(run(installed, "-c", GENERATE, str(real_model), at=folder))
    assert Path(said["file"]).is_relative_to(folder)
    assert not [entry for entry in said["path"] if Path(entry).is_relative_to(ROOT / "src")]
    assert said["right"] == dict.fromkeys(GOLDEN["smollm2-135m"], True)


def test_the_sdist_holds_what_is_tracked_and_nothing_else(sdist):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {line for line in tracked.stdout.splitlines() if not line.startswith((".ci/", ".github/"))}
    assert {str(file.relative_to(sdist)) for file in sdist.rglob("*") if file.is_file()} == wanted | {"PKG-INFO"}


def test_the_sdist_builds_the_same_wheel(sdist, wheel, folder):
    """Its sources have the digest of those that the library of this checkout was built from."""
    built, _ = hatchling("wheel", folder / "again", at=sdist, TOKENMILL_NATIVE_LIBRARY=str(native_library.FILE))
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built) as other:
        differ = {name for name in other.namelist() if one.read(name) != other.read(name)}
    assert {name.rsplit("/", 1)[1] for name in differ} <= {"RECORD", "WHEEL"}  # they have the platform's name


def test_without_a_compiler_the_sdist_installs_and_says_what_is_missing(sdist, folder, llama):
    built, warned = hatchling("wheel", folder / "pure", at=sdist, PATH=without_compilers(folder))
    assert built.name.endswith("-py3-none-any.whl") and LIBRARY not in names_in(built)
    assert "native program was not built: no C++ compiler" in warned
    python = environment(folder / "pure environment")
    install(python, built)
    said = run(python, "-m", "tokenmill", "--version", at=folder).splitlines()
    assert said[1].startswith("the native program's library was not built when tokenmill was installed: install a C++")
    said = run(python, "-m", "tokenmill", "generate", str(llama), "--tokens", "1,2", "-n", "4", at=folder)
    assert len(said.split()) == 4
    shutil.rmtree(folder / "pure environment")
