"""The ends of models of a server: what is held of one, by whom, and what a step, a signal or an error may not skip."""

import asyncio
import shutil
import threading
import time
from contextlib import suppress

import pytest

from tests.peft_adapters import save_adapter
from tests.serve.conftest import SETTINGS, served
from tests.serve.loop.test_driver import Gate
from tests.serve.models.conftest import MODEL_BYTES, PROMPTS, loaded, several
from tests.serve.models.test_residents import played, quiet, stage, use
from tests.serve.models.test_router import complete, text_of
from tests.serve.sessions.test_batches import BODIES, client_of, line, started
from tokenmill import load
from tokenmill.errors import RequestError
from tokenmill.serve.facts import adapters as adapters_module
from tokenmill.serve.models.hosted import LOADED, UNLOADING, Hosted, ModelSetup, died
from tokenmill.serve.models.loading import served_of
from tokenmill.serve.start.options import Options
from tokenmill.settings.engine_config import EngineConfig


def test_models_change_in_the_event_loop_alone(monkeypatch):
    """Metrics and health read them there."""
    threads = set()

    def noted(self, name, value):
        if name in ("served", "state", "users", "is_leaving"):
            threads.add(threading.get_ident())
        object.__setattr__(self, name, value)

    async def play(made):
        monkeypatch.setattr(Hosted, "__setattr__", noted)
        for name in "aba":
            await use(made, name)
        assert threads == {threading.get_ident()}

    assert played(stage(room=1), play) == ["a+", "a-", "b+", "b-", "a+"]


def test_a_model_that_ends_is_seen_until_it_has_ended():
    """A step that hangs meanwhile is told by /health; at the end of the server it is not waited for."""
    ends, said = threading.Event(), []

    async def play(made):
        await use(made, "a")
        hosted = made["a"]
        ended = hosted.served.end
        hosted.served.end = lambda is_hung: [said.append(is_hung()), ends.wait(60), said.append(is_hung())] and ended(0)
        hosted.served.driver.is_hung = True
        made.residents.unload_soon(hosted)
        while not said:
            await quiet(made)
        assert hosted.state == UNLOADING and hosted.served is not None
        assert "the engine of a hangs" in str(died(made.residents.all))
        made.residents.refuse_new()
        ends.set()
        while hosted.state == UNLOADING:
            await quiet(made)
        assert hosted.served is None

    played(stage(), play)
    assert said == [False, True]


def test_a_long_step_is_waited_for(chat_model):
    """Its memory is let go of when it has ended, however long that takes."""
    with served(chat_model) as server:
        core, looks = server.driver.core, threading.Semaphore(0)
        gate = Gate(core)

        def run():
            with suppress(RequestError):  # it may end before the engine is closed
                server.served.engine.generate("w1")

        running = threading.Thread(target=run)
        running.start()
        assert gate.waits.wait(60)
        ended = []
        ending = threading.Thread(target=lambda: ended.append(server.served.end(lambda: looks.release() or False)))
        ending.start()
        assert all(looks.acquire(timeout=60) for _ in range(3)) and not ended and not core._is_closed
        gate.opened.set()
        ending.join(60)
        running.join(60)
        assert ended == [True] and core._is_closed


def test_a_batch_is_waited_for(chat_model, tmp_path):
    """The engine is not closed under it, however long what it does takes."""
    with served(chat_model, batch_dir=tmp_path) as server, client_of(server) as client:
        worker, looks, ended = server.served.batches, threading.Semaphore(0), []
        begun, goes_on, finish = threading.Event(), threading.Event(), worker._finish

        def held(*given):
            begun.set()
            assert goes_on.wait(60)
            finish(*given)

        worker._finish = held
        batch = started(client, [line(1, *BODIES[0])])
        assert begun.wait(60)
        ending = threading.Thread(target=lambda: ended.append(server.served.end(lambda: looks.release() or False)))
        ending.start()
        assert all(looks.acquire(timeout=60) for _ in range(3)) and not ended
        assert not server.driver.core._is_closed
        goes_on.set()
        ending.join(60)
        assert ended == [True] and worker.read("open", batch.id)["status"] == "completed"


def test_an_engine_that_cannot_be_served_is_closed(paths, monkeypatch):
    def fail(engine):
        raise MemoryError

    monkeypatch.setattr("tokenmill.serve.start.server.use_engine", fail)
    engine = load(paths["words"], **SETTINGS)
    hosted = Hosted(ModelSetup(EngineConfig(model=paths["words"]), Options("words")))
    with pytest.raises(MemoryError):
        served_of(hosted, engine, lambda: None)
    with pytest.raises(RequestError, match="closed"):
        engine.generate("w1")


@pytest.mark.parametrize("what", ["+", "-"])
def test_a_load_or_an_end_that_runs_is_awaited_at_the_end(what):
    """So that nothing of an engine is left: it is closed, once."""
    made, begun, ends = stage(), threading.Event(), threading.Event()

    def held(do):
        def doing(*given):
            begun.set()
            assert ends.wait(60)
            return do(*given)

        return doing

    async def play():
        work = asyncio.create_task(made.residents.run())
        if what == "+":
            made.residents._load = held(made.residents._load)
            asking = asyncio.create_task(use(made, "a"))
        else:
            await use(made, "a")
            made["a"].served.end = held(made["a"].served.end)
            asking = asyncio.create_task(quiet(made))
            made.residents.unload_soon(made["a"])
        while not begun.is_set():
            await quiet(made)
        work.cancel()
        await quiet(made)
        assert not work.done()
        ends.set()
        await asyncio.wait({work})
        asking.cancel()
        await asyncio.wait({asking})

    asyncio.run(play())
    assert (made["a"].state == LOADED) == (what == "+")
    assert made.residents.close() and made.happened == ["a+", "a-"]


def test_a_signal_while_a_model_is_loaded(paths, wanted):
    """Who waits for it is answered."""
    with several(paths) as server:
        begun, goes_on, texts, load_model = threading.Event(), threading.Event(), [], server.residents._load

        def held(*given):
            begun.set()
            assert goes_on.wait(60)
            return load_model(*given)

        server.residents._load = held
        asking = threading.Thread(target=lambda: texts.append(text_of(complete(server, "words", PROMPTS[0]))))
        asking.start()
        assert begun.wait(60)
        server.handle_exit(15, None)
        assert complete(server, "bytes", "a").status_code == 503
        goes_on.set()
        asking.join(60)
        assert texts == [wanted["words", PROMPTS[0]]]


@pytest.mark.parametrize("what", ["a step", "a load", "an end"])
def test_a_second_signal_waits_for_nothing(paths, what):
    begun, ends, got = threading.Event(), threading.Event(), []

    def held(*given):
        begun.set()
        assert ends.wait(60)

    with several(paths, options={"drain_s": 600.0}) as server:
        words, bytes_, _ = server.residents.all
        for name in ("words", "bytes"):
            assert complete(server, name, "w1").status_code == 200
        if what == "a load":
            server.residents._load = held
        else:
            gate = Gate(bytes_.served.driver.core)
            gate.opened, gate.waits = ends, begun
        name = "other" if what == "a load" else "bytes"
        asking = threading.Thread(target=lambda: got.append(complete(server, name, PROMPTS[0]).status_code))
        asking.start()
        assert begun.wait(60)
        if what == "an end":
            server._work.get_loop().call_soon_threadsafe(server.residents.unload_soon, words)
            while words.state != UNLOADING:
                time.sleep(0.001)
        for _ in range(2):
            server.handle_exit(15, None)
        asking.join(60)
        assert got == [503]
    assert server.exit_code == 143
    ends.set()


# ---- memory


def test_a_model_whose_files_have_grown(paths):
    """It is counted as it is now, before it is loaded, and refused where it does not fit any more."""
    sizes = dict.fromkeys(paths, MODEL_BYTES)
    with several(paths, room=2, plan=lambda setup: sizes[setup.name]) as server:
        for name in ("words", "bytes"):
            assert complete(server, name, "w1").status_code == 200
        sizes["other"] *= 2
        assert complete(server, "other", "w1").status_code == 200 and loaded(server) == ["other"]
        sizes["words"] *= 3
        refused = complete(server, "words", "w1")
        assert refused.status_code == 503
        assert "memory for this model: 3.0 GB needed, 2.0 GB available; change --memory" in refused.text
        assert loaded(server) == ["other"]


def test_files_that_were_replaced_are_served_as_they_are(paths, wanted, tmp_path):
    """Nothing is found that another model has kept on disk."""
    model, prompt = tmp_path / "model", " ".join(f"w{number}" for number in range(40))
    shutil.copytree(paths["words"], model)
    both = {"model": str(model), "bytes": paths["bytes"]}
    with several(both, room=1, settings={"prefix_dir": str(tmp_path / "kept")}) as server:
        first = complete(server, "model", prompt)
        assert text_of(complete(server, "model", PROMPTS[0])) == wanted["words", PROMPTS[0]]
        complete(server, "bytes", "a")
        shutil.rmtree(model)
        shutil.copytree(paths["other"], model)
        second = complete(server, "model", prompt).json()
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        with load(paths["other"], **SETTINGS, speculate="off") as alone:
            assert second["choices"][0]["text"] == alone.generate(prompt, max_new_tokens=6, temperature=0).text
        assert second["system_fingerprint"] != first.json()["system_fingerprint"]
        assert text_of(complete(server, "model", PROMPTS[0])) == wanted["other", PROMPTS[0]]
        complete(server, "bytes", "a")
        (model / "model.safetensors").write_bytes(b"no")
        refused = complete(server, "model", prompt)
        assert refused.status_code == 503 and "the server's log says why" in refused.text


@pytest.mark.parametrize("is_used", [False, True])
def test_an_unloaded_model_is_described_by_its_files_of_now(paths, tmp_path, is_used):
    """Files that are gone or damaged leave what was known, and say so."""
    model = tmp_path / "model"
    both = {"model": str(model), "bytes": paths["bytes"]}

    def facts():
        (listed,) = (each for each in server.http.get("/v1/models").json()["data"] if each["id"] == "model")
        assert server.http.get("/v1/models/model").json() == listed
        shown = server.http.post("/api/show", json={"model": "model"}).json()
        (tagged,) = (each for each in server.http.get("/api/tags").json()["models"] if each["name"].startswith("model"))
        found = shown["details"]["family"], tagged["details"]["family"], bool(tagged["digest"])
        return listed["state"], *found

    shutil.copytree(paths["words"], model)
    with several(both, room=1) as server:
        if is_used:
            assert complete(server, "model", "w1").status_code == complete(server, "bytes", "a").status_code == 200
        assert facts() == ("unloaded", "llama", "llama", is_used)
        shutil.rmtree(model)
        shutil.copytree(paths["other"], model)
        assert facts() == ("unloaded", "qwen2", "qwen2", False)
        (model / "config.json").rename(tmp_path / "config.json")
        assert facts() == ("unreadable", "qwen2", "qwen2", False)
        assert complete(server, "model", "w1").status_code == 503
        (tmp_path / "config.json").rename(model / "config.json")
        assert facts() == ("unloaded", "qwen2", "qwen2", False)
        assert complete(server, "model", "w1").status_code == 200
        assert facts() == ("loaded", "qwen2", "qwen2", True)
        shutil.rmtree(model)
        assert facts() == ("loaded", "qwen2", "qwen2", True)
        assert complete(server, "bytes", "a").status_code == 200
        assert facts() == ("unreadable", "qwen2", "qwen2", True)


# ---- adapters


def test_one_name_is_given_to_one_adapter(paths, tmp_path, monkeypatch):
    """Also where two clients load one at the same time."""
    save_adapter("llama", tmp_path / "first")
    read, begun, goes_on, answers = adapters_module._load, threading.Event(), threading.Event(), []

    def held(*given):
        begun.set()
        assert goes_on.wait(60)
        read(*given)

    monkeypatch.setattr(adapters_module, "_load", held)
    two = {"words": paths["words"], "twin": paths["words"]}
    with several(two, options={"lora_folder": tmp_path}) as server:

        def load_adapter(model, name):
            body = {"model": model, "lora_name": name, "lora_path": "first"}
            return server.http.post("/v1/load_lora_adapter", json=body)

        assert complete(server, "twin", "w1").status_code == 200
        loading = threading.Thread(target=lambda: answers.append(load_adapter("words", "mine")))
        loading.start()
        assert begun.wait(60)
        begun.clear()
        refused = load_adapter("twin", "Mine")
        assert refused.status_code == 409 and not begun.is_set(), refused.text
        goes_on.set()
        loading.join(60)
        assert answers[0].status_code == 200
        monkeypatch.setattr(adapters_module, "_load", lambda *given: read(*given) or read(*given))  # another is first
        twice = load_adapter("words", "second")
        assert twice.status_code == 409 and "'second' is loaded already" in twice.text
        assert text_of(complete(server, "mine", PROMPTS[0])) != text_of(complete(server, "twin", PROMPTS[0]))


def test_an_adapter_that_has_gone_while_its_model_was_away(paths, tmp_path):
    """Its name gives no text of the model; another one may be loaded in its place."""
    for seed, name in enumerate(("first", "second")):
        save_adapter("llama", tmp_path / name, seed=seed)
    both = {"words": paths["words"], "bytes": paths["bytes"]}
    with several(both, room=1.5, options={"lora_folder": tmp_path}) as server:

        def post(route, **body):
            return server.http.post(f"/v1/{route}_lora_adapter", json={"model": "words", **body})

        for name in ("first", "second"):
            assert post("load", lora_name=name, lora_path=name).status_code == 200
        second = text_of(complete(server, "second", PROMPTS[0]))
        assert complete(server, "bytes", "a").status_code == 200 and loaded(server) == ["bytes"]
        shutil.rmtree(tmp_path / "first")
        refused = complete(server, "first", PROMPTS[0])
        assert refused.status_code == 404 and "first" in refused.text, refused.text
        assert text_of(complete(server, "second", PROMPTS[0])) == second
        shutil.copytree(tmp_path / "second", tmp_path / "third")
        assert post("load", lora_name="first", lora_path="third").status_code == 200
        assert text_of(complete(server, "first", PROMPTS[0])) == second
        assert complete(server, "bytes", "a").status_code == 200
        assert text_of(complete(server, "first", PROMPTS[0])) == second
        assert post("unload", lora_name="first").status_code == 200
        assert complete(server, "first", PROMPTS[0]).status_code == 404
