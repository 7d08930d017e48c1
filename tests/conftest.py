"""The fixtures and settings that every test shares.

What takes seconds to import is imported where it is used: pytest-xdist's first process reads this file, too, and runs
no test.
"""

import asyncio
import gc
import os
import shutil
import signal
from functools import cache
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch: its idle threads would spin beside the other worker
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if not Path("/dev/nvidiactl").exists():  # before Triton: it decides where its functions are defined
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

import tokenmill
from tokenmill.hub.download import cache_folder
from tokenmill.hub.names import SHORT_NAMES, locate

THREADED = (
    *("laws", "program", "kernels", "parallel", "quant", "sample", "model/test_activations.py", "model/test_layers.py"),
    *("engine/test_process.py", "loader/test_load_model.py", "serve/loop/test_everything.py"),
)
"""Tests that compute in two threads: the laws, and tests of what threads divide. Law 6 holds that the number of threads
changes no bit, so other tests compute in one thread: a step of a tiny model takes less time than waking a thread, and
two threads that wait for each other take nine times the processor time.
"""

IN_ONE = ("laws/test_law_01", "laws/test_law_05")
"""Laws that compare texts and logits with transformers or with plain decoding. Laws 6 and 14 compute such texts in
several threads.
"""

NAMED = ("browser", "compiler", "ray")
"""Markers that a test's own file names: a run of one of them imports no other files."""

LONGEST = ("test_documents.py", "test_blocks.py")
"""Files with tests of a minute. One that begins last would leave the other worker idle."""


def pytest_configure(config):
    """Have Ctrl-C work here and in children also where a shell began the tests in the background, and so ignores it.

    No test may depend on how fast the machine is.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(20_000, 20, 50)  # with the default of 700 collections take 7 % of the processor time
    if not config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ:
        from hypothesis import HealthCheck, settings

        settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("patient")


def pytest_ignore_collect(collection_path, config):
    """Leave out a file that does not name the marker that tests are chosen by, as in `-m "compiler and not long"`."""
    chosen = config.option.markexpr.split()
    is_test = collection_path.match("test_*.py")
    if is_test and chosen and chosen[0] in NAMED and "or" not in chosen and not names(collection_path, chosen[0]):
        return True
    return None  # as pytest decides


@cache
def names(path, marker):
    """Whether a file names a marker."""
    return f"pytest.mark.{marker}" in path.read_text(encoding="utf-8")


def pytest_addoption(parser):
    """Add --cases."""
    parser.addoption("--cases", type=int, help="run at most so many cases of each test, spread evenly over all of them")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before any are left out, and after that
def pytest_collection_modifyitems(config, items):
    """Begin with the longest, and refuse a test that has such a marker from elsewhere, which would run nowhere."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        for marker in item.iter_markers():
            if marker.name in NAMED and not names(item.path, marker.name):
                raise pytest.UsageError(f"{item.nodeid} is marked {marker.name}, and its file must name that marker")
    yield
    if cases := config.getoption("cases"):
        kept = some_of_each(items, cases)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def some_of_each(items, count):
    """At most `count` cases of each test: the first, the last, and some between them."""
    tests = {}
    for item in items:
        tests.setdefault((item.path, item.parent, item.originalname), []).append(item)
    steps = range(count)
    return {cases[step * (len(cases) - 1) // max(1, count - 1)] for cases in tests.values() for step in steps}


def pytest_collection_finish():
    """Freeze what is imported by now, which stays: each full collection takes a quarter of a second less."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory):
    """The user's own cache folder. The tests have a temporary one, with the model that was fetched before in it.

    So packed copies, measured limits of the machine and stored blocks are written nowhere else; nor is users' data.
    """
    users, ours = cache_folder(), tmp_path_factory.mktemp("cache")
    for model in SHORT_NAMES.values():
        if (file := users / model.file_name).is_file():
            (ours / file.name).symlink_to(file.absolute())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_CACHE", str(ours))
        patch.setenv("TOKENMILL_DATA", str(tmp_path_factory.mktemp("data")))
        yield users
    shutil.rmtree(ours, ignore_errors=True)  # a thread of a test that has ended may write into it


@pytest.fixture(scope="session", autouse=True)
def quick_ends():
    """A server looks a hundred times a second whether it is to end, and not ten times, since tests end hundreds."""
    import uvicorn.server

    class Quick:
        def __getattr__(self, name):
            return getattr(asyncio, name)

        async def sleep(self, seconds):
            await asyncio.sleep(seconds / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", Quick())
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """What is made for all tests is computed in one thread."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def num_threads(request):
    """The number of threads in which torch computes, and engines that are not told another one."""
    import torch

    path = request.path.relative_to(Path(__file__).parent).as_posix()
    torch.set_num_threads(2 if path.startswith(THREADED) and not path.startswith(IN_ONE) else 1)


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Freeze what is there before a file's tests: each full collection, of which check_empty makes one, then looks at
    what they made alone, and takes milliseconds. What was left by the file before is collected first.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers():
    """A test draws the same random numbers whatever ran before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def tm(capsys):
    """Runs one command line; gives exit code, stdout and stderr."""
    from tokenmill.cli.main import main

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder into which a module's tiny models are written."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama(models):
    """The tiny one that most things are tried on."""
    from tests.tiny_models import save

    return save("llama", models)


@pytest.fixture(scope="module")
def engine_of():
    """Gives the engine of a model with settings, which is loaded once for the tests of a file and closed after them.

    Texts do not depend on what an engine did before. A test that counts what it did, patches it or closes it loads one
    of its own.
    """
    loaded = {}

    def find(path, **settings):
        key = repr((str(path), sorted(settings.items())))
        if key not in loaded:
            loaded[key] = tokenmill.load(path, **settings)
        return loaded[key]

    yield find
    for engine in loaded.values():
        engine.close()


@pytest.fixture(scope="session")
def real_model(users_cache):
    """Path of SmolLM2-135M-Instruct; fetched on the first run, from the user's cache folder afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_CACHE", str(users_cache))
        return locate("smollm2-135m")


@pytest.fixture(scope="session")
def real_peer(real_model):
    """The same model in transformers, float32, loaded once. transformers reads the whole header twice and makes a table
    of names for each of 397 modules; here each is made once.
    """
    import gguf
    import torch
    import transformers

    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        return transformers.AutoModelForCausalLM.from_pretrained(
            real_model.parent, gguf_file=real_model.name, dtype=torch.float32
        ).eval()
