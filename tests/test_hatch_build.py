"""When the native library is built, and what is packed where it cannot be. No compiler runs here but one that lies."""

from types import SimpleNamespace

import hatch_build
import pytest

OURS = hatch_build.ELF_MACHINES.get(hatch_build.target_machine(), 0)


def write_compiler(folder, name="c++", version="c++ (Test) 1.0", does="exit 1"):
    """A compiler that tells its version, and does anything else."""
    file = folder / name
    file.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n{does}\n')
    file.chmod(0o755)
    return file


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A source tree with no library in it, and a PATH with no compiler."""
    tools, library = tmp_path / "tools", tmp_path / "src" / "tokenmill" / "kernels" / "libtokenmill.so"
    tools.mkdir(), library.parent.mkdir(parents=True)
    monkeypatch.setattr(hatch_build, "ROOT", tmp_path)
    monkeypatch.setattr(hatch_build, "LIBRARY", library)
    digest = hatch_build.sources_digest
    monkeypatch.setattr(hatch_build, "sources_digest", lambda: "0123456789abcdef")
    monkeypatch.setenv("PATH", str(tools))
    for name in ("CXX", "TOKENMILL_NATIVE_LIBRARY", "_PYTHON_HOST_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    return SimpleNamespace(tools=tools, library=library, digest=digest)


@pytest.fixture
def built(monkeypatch):
    """What was built: `build` writes a file that says what the right library would."""
    found = []

    def build(library):
        write_library(library)
        found.append(library)

    monkeypatch.setattr(hatch_build, "build", build)
    return found


def write_library(file, digest="0123456789abcdef", by="gcc (Test) 1.0", machine=OURS):
    header = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
    file.write_bytes(header + f"\0tokenmill's library was built from {digest} by {by}\0 ...".encode())


def packed(version="standard"):
    """What the hook tells hatchling, and its warnings."""
    warnings = []

    class Hook(hatch_build.NativeBuildHook):
        app = SimpleNamespace(display_warning=warnings.append)

    hook = Hook.__new__(Hook)
    data = {"force_include": {}}
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    return data, warnings


def test_a_library_that_is_up_to_date_is_not_built_again(tree, built):
    write_compiler(tree.tools)
    write_library(tree.library)
    data, warnings = packed()
    assert not built and not warnings
    assert data["force_include"] == {str(tree.library): "tokenmill/kernels/libtokenmill.so"}
    assert data["pure_python"] is False and data["tag"].startswith("py3-none-")
    assert packed("editable")[0]["force_include"] == {} and not built  # it lies in place already


@pytest.mark.parametrize("change", [{"digest": "fedcba9876543210"}, {"by": "gcc (Test) 2.0"}, {"machine": 8}])
def test_other_sources_compilers_and_machines_build_it_again(tree, built, change):
    write_compiler(tree.tools)
    write_library(tree.library, **change)
    packed()
    assert built == [tree.library]


def test_without_a_compiler_one_of_the_same_sources_is_taken(tree, built):
    write_library(tree.library, by="any other")
    assert packed()[0]["pure_python"] is False and not built


def test_a_library_of_another_machine_is_not_packed_without_a_compiler(tree):
    write_library(tree.library, machine=8)
    assert packed()[0] == {"force_include": {}}


def test_without_a_compiler_the_wheel_is_pure(tree):
    data, warnings = packed()
    assert data == {"force_include": {}}
    assert warnings == [
        "tokenmill's native program was not built: no C++ compiler: neither CXX nor c++, g++ or clang++"
    ]


@pytest.mark.parametrize("does", ["echo 'no room left on device' >&2; exit 1", "kill -9 $$"])
def test_a_broken_compiler_is_told_and_leaves_no_older_library(tree, does, monkeypatch):
    write_compiler(tree.tools, does=does)
    write_library(tree.library, digest="fedcba9876543210")
    data, warnings = packed()
    assert data == {"force_include": {}} and warnings[0].startswith("tokenmill's native program was not built: ")
    assert ("no room left" in warnings[0]) == ("no room left" in does)
    packed("editable")
    assert not tree.library.exists()


def test_a_compiler_that_does_not_even_tell_its_version(tree):
    write_compiler(tree.tools, name="g++").write_text("#!/bin/sh\nexit 3\n")
    write_library(tree.library)
    assert packed()[0] == {"force_include": {}}


@pytest.mark.parametrize("why", ["read-only", "for another machine"])
def test_where_the_tree_must_stay_as_it_is_it_is_built_elsewhere(tree, built, why, monkeypatch):
    write_compiler(tree.tools)
    if why == "read-only":
        monkeypatch.setattr(hatch_build.os, "access", lambda *_: False)
    else:
        monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    data, _ = packed()
    assert built and built[0] != tree.library and not tree.library.exists()
    assert data["force_include"] == {str(built[0]): "tokenmill/kernels/libtokenmill.so"}
    assert not built[0].exists()  # the hook tidies up
    if why == "for another machine":
        assert data["tag"] == "py3-none-linux_aarch64" and set(hatch_build.builds()) == {"dotprod", "portable"}


def test_a_library_from_elsewhere_is_taken_if_it_is_that_of_these_sources(tree, built, tmp_path, monkeypatch):
    other = tmp_path / "other.so"
    monkeypatch.setenv("TOKENMILL_NATIVE_LIBRARY", str(other))
    write_compiler(tree.tools)
    write_library(other)
    assert packed()[0]["force_include"] == {str(other): "tokenmill/kernels/libtokenmill.so"} and not built
    write_library(other, digest="fedcba9876543210")
    packed()
    assert built == [tree.library]


def test_cxx_may_have_arguments(tree, monkeypatch):
    write_compiler(tree.tools, name="zig", version="clang version 22")
    monkeypatch.setenv("CXX", "zig c++ -target x86_64-linux-musl")
    assert hatch_build.compiler() == ["zig", "c++", "-target", "x86_64-linux-musl"]
    assert hatch_build.compiler_name(["zig"]) == "clang version 22"
    monkeypatch.setenv("CXX", "nothing-of-that-name")
    assert hatch_build.compiler() is None
    write_compiler(tree.tools, name="clang++")
    assert hatch_build.compiler() == ["clang++"]


def test_the_digest_is_that_of_sources_and_flags(tree, tmp_path, monkeypatch):
    native = tmp_path / "native"
    native.mkdir()
    monkeypatch.setattr(hatch_build, "SOURCES", native)
    (native / "a.cpp").write_text("int a;")
    first = tree.digest()
    (native / "a.cpp").write_text("int b;")
    second = tree.digest()
    monkeypatch.setattr(hatch_build, "FLAGS", [*hatch_build.FLAGS, "-O1"])
    assert len({first, second, tree.digest()}) == 3


def test_the_text_that_is_looked_for_is_the_one_that_is_written():
    text = (hatch_build.SOURCES / "built_from.cpp").read_text()
    assert '"tokenmill\'s library was built from " TM_BUILT_FROM' in text
