"""`tokenmill serve A B …`: which models were named, what each may take of the memory, and what is refused."""

import json

import pytest

from tests.byte_model import save_byte_model
from tests.word_model import save_chat_model
from tokenmill.cli.serve import shares
from tokenmill.cli.serve.several import _planned_bytes, read_idle
from tokenmill.cli.serve.shares import _cache_share, read_memory
from tokenmill.errors import ConfigError

GB = 10**9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_byte_model(folder / "bytes", context=8192)
    save_chat_model(folder / "words")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def setups(tm, monkeypatch, folder):
    """Runs `serve` without serving; the settings of the models by name, and the room for all. Else what it says."""

    def setups(*arguments):
        seen = []

        class Server:
            def __init__(self, residents, taken, options, tell):
                seen.extend(residents.all)
                taken.close()

            def serve_to_end(self):
                return True

        from tokenmill.serve.models import server

        monkeypatch.setattr(server, "ModelsServer", Server)
        code, _, err = tm("serve", "--port", "0", *arguments)
        if code:
            return code, err
        return {each.name: each.setup for each in seen}, err

    return setups


def test_models_are_named_in_several_ways(setups, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENMILL_CONFIG", str(tmp_path))
    (tmp_path / "presets.toml").write_text(
        f'[short]\nmodel = "{folder / "bytes"}"\nmax-length = 64\nport = 9\ntemperature = 0.5\nkeep-alive = "1h"\n'
    )
    bytes_, words = str(folder / "bytes"), str(folder / "words" / "llama")
    found, err = setups(bytes_, f"w={words}", "preset:short", "mine=preset:short", "--memory", "4GB")
    assert [*found] == [bytes_, "w", "short", "mine"]
    assert [each.engine.model for each in found.values()] == [bytes_, words, bytes_, bytes_]
    assert [each.engine.max_length for each in found.values()][2:] == [64, 64] and found[
        bytes_
    ].engine.max_length == 8192
    assert [each.keep_alive_s for each in found.values()] == [300.0, 300.0, 3600.0, 3600.0]
    assert "preset short: a model of several has no temperature, port, so that is left out" in err
    assert "4 models at http://127.0.0.1" in err and "in 3.6 GB of memory" in err


def test_what_is_typed_goes_over_a_preset(setups, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENMILL_CONFIG", str(tmp_path))
    (tmp_path / "presets.toml").write_text(f'[short]\nmodel = "{folder / "bytes"}"\nmax-length = 64\n')
    found, _ = setups("preset:short", "--max-length", "32")
    assert found["short"].engine.max_length == 32


def test_a_folder_of_models_names_them_by_their_paths(setups, folder):
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    (folder / "broken" / "model.safetensors").write_bytes(b"")
    found, err = setups(str(folder))
    assert sorted(found) == ["bytes", "words/llama"]
    assert "left out: broken" in err


def test_sessions_lie_apart(setups, folder, tmp_path):
    found, _ = setups(str(folder), "--session-dir", str(tmp_path))
    assert {each.options.session_dir for each in found.values()} == {tmp_path / "bytes", tmp_path / "words%2Fllama"}


def test_one_model_that_may_be_unloaded(setups, folder):
    found, _ = setups(str(folder / "bytes"), "--keep-alive", "30")
    (setup,) = found.values()
    assert setup.keep_alive_s == 30.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["A", "B", "--served-model-name", "x"], "NAME=MODEL, which names each of them"),
        (["A", "B", "--replicas", "2"], "several models have an engine each"),
        (["A", "B", "--batch-dir", "x"], "a server of several models takes no batches"),
        (["x=A", "x=B"], "another name than that of"),
        (["x=A", "X=B"], "another name than that of"),
        (["A", "no-such-model-here"], "no-such-model-here"),
        (["A", "preset:none"], "preset = 'none'"),
        (
            ["A", "--memory", "much"],
            "memory = 'much' (set in --memory) is not allowed: a size such as 8, 8GB or 6000MB",
        ),
        (["A", "--memory", "0GB"], "a size such as 8, 8GB or 6000MB"),
        (["A", "--keep-alive", "soon"], "seconds, or a duration such as 5m"),
        (["A", "--memory", "401MB"], "one that fits into"),
        (["A", "--memory", "300MB"], "memory = '300.0 MB' (set in --memory) is not allowed: more than 400.0 MB"),
        (["A", "B", "--tensor-parallel", "2"], "1 for a server of several models"),
        (["EMPTY"], "a folder with a model in it"),
    ],
)
def test_what_is_refused(arguments, said, setups, folder):
    places = {"A": folder / "bytes", "B": folder / "words" / "llama", "EMPTY": folder / "empty"}
    given = [
        f"{name}={places[model]}" if (parts := each.partition("="))[1] and (name := parts[0]) and (model := parts[2])
        else str(places.get(each, each)) for each in arguments
    ]  # fmt: skip
    code, err = setups(*given)
    assert code == 2 and said in err


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [("8", 8 * GB), ("8GB", 8 * GB), ("1.5 gb", 3 * GB // 2), ("6000MB", 6 * GB), ("2GiB", 2**31), (None, None)],
)
def test_sizes_of_memory(given, num_bytes):
    assert read_memory(given) == num_bytes


@pytest.mark.parametrize(("given", "seconds"), [(None, 300.0), ("0", 0.0), ("-1", None), ("2m", 120.0), ("7", 7.0)])
def test_times_of_idle_models(given, seconds):
    assert read_idle(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "5 minutes", "nan", "inf"])
def test_what_is_no_time(given):
    with pytest.raises(ConfigError, match="seconds, or a duration"):
        read_idle(given)


@pytest.mark.parametrize(
    ("weights", "available", "share"),
    [
        ([1, 1], 10, 4),  # both, and eight for two caches
        ([5, 4, 1], 8, 1),  # 5 with 1: two for two; 4 with 1: three for two
        ([5, 3], 8, 3),  # not together, so that each may have the rest alone
        ([9], 8, 0),
    ],
)
def test_the_caches_of_those_that_fit_together_share_what_is_left(weights, available, share):
    assert _cache_share(weights, available) == share


def test_a_model_is_planned_before_a_load_as_at_the_start(setups, folder):
    found, _ = setups(f"a={folder / 'words' / 'llama'}", f"b={folder / 'bytes'}", "--memory", "2GB")
    planned = {name: _planned_bytes(each) for name, each in found.items()}
    assert planned == {name: each.num_bytes for name, each in found.items()}


def test_those_that_fit_together_stay_together(setups, folder):
    """By what is planned for them."""
    found, _ = setups(str(folder), "--memory", "1GB")
    assert sum(each.num_bytes for each in found.values()) <= 600_000_000
    assert shares.OWN_BYTES == 400_000_000


def test_a_long_name_has_a_folder_for_its_sessions(setups, folder, tmp_path):
    found, _ = setups(f"{'é' * 100}={folder / 'bytes'}", "--session-dir", str(tmp_path))
    (setup,) = found.values()
    assert len(setup.options.session_dir.name) == 64


def test_adapters_of_two_models_have_names_of_their_own(setups, folder):
    _, err = setups(f"a={folder / 'bytes'}", f"b={folder / 'bytes'}", "--lora-modules", f"b={folder}")
    assert "another name than that of b or of its adapter" in err


def test_plan_says_what_stays_together(tm, folder):
    bytes_, words = str(folder / "bytes"), str(folder / "words" / "llama")
    code, out, _ = tm("plan", bytes_, f"w={words}", "--memory", "1GB", "--json")
    found = json.loads(out)
    assert code == 0 and found["together"] and found["room_bytes"] == 600_000_000
    assert [each["name"] for each in found["models"]] == [bytes_, "w"]
    assert sum(each["total_bytes"] for each in found["models"]) == found["total_bytes"]
    code, out, _ = tm("plan", bytes_, f"w={words}", "--memory", "402MB")
    assert code == 0 and "loaded in turns" in out and "2 models in 2.0 MB" in out
    code, _, err = tm("plan", bytes_, f"w={words}", "--check")
    assert code == 2 and "one model, without --memory" in err
