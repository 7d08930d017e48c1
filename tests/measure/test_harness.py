"""lm-evaluation-harness over an engine: the figures of its model "hf", the same in any batch; what is refused."""

import json
import math
import os
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

import tokenmill
from tests.empty import check_empty
from tests.tiny_models import VOCABULARY, prompt, save
from tests.word_model import save_word_model
from tokenmill.errors import ConfigError, RequestError
from tokenmill.kernels import native_library

pytestmark = pytest.mark.clients
# Scores of the other programs are the same in any batch but for the last bits.
needs_library = pytest.mark.skipif(not native_library.is_usable(), reason="the native library was not built")

END = "<end>"
TEMPLATE = """{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}
{%- if add_generation_prompt %}w9 {% endif %}"""
DATA = "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\nfewshot_split: test\n"
TASKS = {
    "choice": """output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "rolling": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "writing": """output_type: generate_until
doc_to_text: question
doc_to_target: text
generation_kwargs: {until: [w7, w11], max_gen_toks: 20, do_sample: false}
metric_list: [{metric: chrf}]
""",
    "sampling": """output_type: generate_until
doc_to_text: question
doc_to_target: text
generation_kwargs: {until: [w7, "w1 "], max_gen_toks: 20, do_sample: true, temperature: 1.5, top_k: 50}
repeats: 3
metric_list: [{metric: chrf}]
""",
}


def words(count, seed):
    return " ".join(f"w{token % 200}" for token in prompt(count, seed))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model that speaks in words and knows an end-of-text token."""
    path = save_word_model(tmp_path_factory.mktemp("models"), TEMPLATE, ("user", "assistant", "system", END))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    # Without this transformers goes on after the end of a text for as long as another of its batch does.
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": VOCABULARY - 1}))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tasks of every kind, with data beside them. Some texts are longer than the context of 128 tokens."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {
            "question": words(2 + 11 * number, number),
            "choices": [words(1 + (number + each) % 4, 50 + each) for each in range(4)],
            "answer": number % 4,
            "text": words(20 + 50 * number, 90 + number),
        }
        for number in range(8)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{DATA.format(file=folder / 'rows.jsonl')}{text}")
    return folder


@pytest.fixture(scope="module")
def evaluated(folder):
    """Figures and answers of one task, by a model of the harness."""
    from tokenmill.measure.harness.tasks import TaskSettings, evaluate, find_tasks

    def run(lm, name, **how):
        found = evaluate(lm, find_tasks([name], folder), TaskSettings(log_samples=True, **how))
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        return found["results"][name], [sample["resps"] for sample in samples]

    return run


@pytest.fixture(scope="module")
def peer(model):
    """The harness' own model, transformers in float32."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=3)


def flat(answers):
    return [value for answer in answers for each in answer for value in (each if isinstance(each, list) else [each])]


@pytest.mark.filterwarnings("ignore")  # of transformers and torch, at which the harness is none the wiser
@pytest.mark.parametrize("program", [pytest.param("native", marks=needs_library), "eager"])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", ["choice", "rolling", "writing"])
def test_figures_are_those_of_hf(model, peer, evaluated, name, program, chat):
    from tokenmill.measure.harness.model import TokenmillLM

    how = {"template": chat, "num_fewshot": 2 if chat else 0}
    how |= {"system_instruction": "w5 w6"} if chat else {}
    wanted, theirs = evaluated(peer, name, **how)
    with tokenmill.load(model, program=program, dtype="float32", threads=1, max_sequences=4) as engine:
        found, ours = evaluated(TokenmillLM(engine), name, **how)
        check_empty(engine.core)
    for metric, value in wanted.items():
        assert found[metric] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), metric
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        if isinstance(one, tuple):
            assert one[0] == pytest.approx(other[0], abs=1e-4) and one[1] == other[1]
        else:
            assert one == (pytest.approx(other, abs=1e-3) if isinstance(one, float) else other)


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_texts_and_scores_are_the_same_in_any_batch(model, evaluated):
    from tokenmill.measure.harness.model import TokenmillLM

    found = []
    for size, settings in ((1, {}), (3, {"block_size": 4}), (16, {"max_step_tokens": 16})):
        with tokenmill.load(model, threads=1, max_sequences=size, **settings) as engine:
            lm = TokenmillLM(engine, seed=5)
            answers = [evaluated(lm, name) for name in TASKS]
            found.append((answers, dict(lm.generated)))
    assert found[0] == found[1] == found[2]
    texts = flat(found[0][0][3][1])
    assert len(set(texts)) > len(texts) // 2  # repetitions have seeds of their own
    assert not any("w7" in text.split() for text in texts)
    with tokenmill.load(model, threads=1, max_sequences=3) as engine:
        assert evaluated(TokenmillLM(engine, seed=6), "sampling")[1] != found[0][0][3][1]


def test_what_does_not_fit_is_cut_from_the_left_and_said(model, caplog):
    from lm_eval.api.instance import Instance

    from tokenmill.measure.harness.model import TokenmillLM

    def instance(kind, *arguments):
        return Instance(kind, {}, arguments, 0, metadata=("task", 0, 1))

    long, tail = words(200, 1), " w4 w5"
    with tokenmill.load(model, threads=1) as engine:
        lm = TokenmillLM(engine)
        ((found, _),) = lm.loglikelihood([instance("loglikelihood", long, tail)])
        kept = lm.tok_encode(long)[-127:]
        assert found == pytest.approx(engine.score_pairs([(kept, lm.tok_encode(tail))])[0].logprob, abs=1e-4)
        assert "202 tokens is cut by 73 from the left: max_length is 128" in caplog.text
        settings = {"until": [], "max_gen_toks": 28}
        (text,) = lm.generate_until([instance("generate_until", long, settings)])
        assert text == engine.generate(lm.tok_encode(long)[-100:], max_new_tokens=28, temperature=0.0).text
        assert "cut to its last 100" in caplog.text
        with pytest.raises(RequestError, match="128 new tokens"):
            lm.generate_until([instance("generate_until", "w1", {"max_gen_toks": 128})])
        with pytest.raises(RequestError, match="over max_length of 128"):
            lm.loglikelihood([instance("loglikelihood", "w1", " " + words(129, 3))])
        with pytest.raises(RequestError, match="adds no token"):
            lm.loglikelihood([instance("loglikelihood", "w1", " ")])
        assert lm.loglikelihood_rolling([instance("loglikelihood_rolling", "")]) == [0.0]


@needs_library
def test_partial_results_reach_the_cache_of_the_harness(model, folder, tmp_path):
    from lm_eval.api.model import CachingLM
    from lm_eval.tasks import TaskManager

    from tokenmill.measure.harness.model import TokenmillLM

    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    with tokenmill.load(model, threads=1, max_sequences=2) as engine:
        lm = CachingLM(TokenmillLM(engine), str(tmp_path / "cache.db"))
        task = tasks.load(["choice"])["tasks"]["choice"]
        task.set_config(key="num_fewshot", value=0)
        task.build_all_requests()
        step, steps = engine.core.loop.step, iter(range(4))

        def interrupted():
            if next(steps, None) is None:
                raise KeyboardInterrupt
            step()

        engine.core.loop.step = interrupted
        with pytest.raises(KeyboardInterrupt):
            lm.loglikelihood(task.instances)
        engine.core.loop.step = step
        assert 0 < len(lm.dbdict) < len(task.instances)
        check_empty(engine.core)
        again = lm.loglikelihood(task.instances)
        assert again == TokenmillLM(engine).loglikelihood(task.instances)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 4}, "num_beams"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"max_gen_toks": 0}, "max_new_tokens"),
        ({"do_sample": True, "temperature": -1.0}, "temperature"),
    ],
)
def test_generation_settings_that_there_are_not_are_refused(given, message):
    from tokenmill.measure.harness.model import read_settings

    with pytest.raises(ConfigError, match=message):
        read_settings(given).params(1, "text", 0)


def test_generation_settings():
    from tokenmill.measure.harness.model import read_settings

    plain = read_settings({"until": "x", "num_beams": 1, "top_p": 0.5}).params(1, "a", 0)
    assert (plain.temperature, plain.top_p, plain.stop, plain.max_new_tokens) == (0.0, 1.0, ("x",), 256)
    given = {"until": ["x", "", "x"], "do_sample": True, "temperature": 0.7, "top_p": 0.5, "max_tokens": 3}
    sampled = [
        read_settings(given).params(seed, text, again)
        for seed, text, again in ((1, "a", 0), (1, "a", 1), (2, "a", 0), (1, "b", 0))
    ]
    assert (sampled[0].temperature, sampled[0].top_p, sampled[0].max_new_tokens) == (0.7, 0.5, 3)
    assert len({each.seed for each in sampled}) == 4
    assert read_settings(given | {"seed": 2}).params(1, "a", 0).seed == sampled[2].seed


# ---- the command


@pytest.fixture
def tm(tm):
    return partial(tm, "eval", "tasks")


def test_the_command_prints_a_table_and_writes_everything(tm, model, folder, tmp_path):
    file = tmp_path / "results.json"
    given = (model, "choice,rolling", "writing", "--include-path", folder, "--limit", 4, "--threads", 1)
    code, out, err = tm(*given, "-o", file, "--log-samples", "--batch-size", 2, "--seed", 3)
    assert code == 0, err
    assert [word in out for word in ("choice", "acc_norm", "word_perplexity", "writing", "chrf")] == [True] * 5
    assert "scoring 16 continuations" in err
    found = json.loads(file.read_text())
    assert set(found["results"]) == {"choice", "rolling", "writing"} and len(found["samples"]["choice"]) == 4
    ours = found["tokenmill"]
    assert (
        ours["settings"]["max_sequences"] == 2 and ours["evaluation"]["limit"] == 4 and ours["evaluation"]["seed"] == 3
    )
    assert ours["generated"]["writing"] in out and len(ours["generated"]["writing"]) == 8
    assert set(ours["versions"]) >= {"tokenmill", "torch", "lm_eval", "datasets"} and ours["fingerprint"]
    assert ours["seconds"] > 0 and "commit" in ours
    more = ("--json", "--quiet", "--max-sequences", 3, "--seed", 3)
    done = python("-m", "tokenmill", "eval", "tasks", *given, *more)  # here other tests have imported tqdm already
    assert (done.returncode, done.stderr) == (0, "")
    again = json.loads(done.stdout)
    assert again["results"] == found["results"] and "samples" not in again
    assert again["tokenmill"]["generated"] == ours["generated"]


def test_a_yaml_file_and_letters_left_open_name_tasks(tm, model, folder):
    code, out, err = tm(model, folder / "choice.yaml", "--limit", 1, "--threads", 1, "--json")
    assert code == 0, err
    assert list(json.loads(out)["results"]) == ["choice"]
    code, out, err = tm(model, "c*e", "ro*", "--include-path", folder, "--limit", 1, "--threads", 1, "--json")
    assert code == 0, err
    assert sorted(json.loads(out)["results"]) == ["choice", "rolling"]


def test_a_chat_template_of_ones_own(tm, model, folder, tmp_path):
    (tmp_path / "own.jinja").write_text("w3 {{ messages[-1]['content'] }} \n\n")
    given = (model, "choice", "--include-path", folder, "--limit", 1, "--threads", 1, "--json", "--log-samples")
    code, out, err = tm(*given, "--chat-template", tmp_path / "own.jinja")
    assert code == 0, err
    assert json.loads(out)["samples"]["choice"][0]["arguments"][0][0].startswith("w3 w")


def test_what_is_wrong_with_a_task_is_said_before_the_model_is_loaded(tm, folder, tmp_path):
    (tmp_path / "broken.yaml").write_text("task: [x")
    code, _, err = tm("no-such-model", "x", "--include-path", tmp_path)
    assert code == 2 and f"{tmp_path}/broken.yaml is no YAML" in err
    code, _, err = tm("no-such-model", tmp_path / "broken.yaml")
    assert code == 2 and "is no YAML" in err
    code, _, err = tm("no-such-model", "x", "--include-path", tmp_path / "nowhere")
    assert code == 2 and "include-path" in err
    code, _, err = tm("no-such-model", ",", "--include-path", folder)
    assert code == 2 and "at least one task" in err
    code, _, err = tm("no-such-model", "choise", "--include-path", folder)
    assert code == 2 and "near it are choice" in err and "`lm_eval ls tasks`" in err
    (tmp_path / "broken.yaml").write_text("task: gone\n" + DATA.format(file=tmp_path / "gone.jsonl") + TASKS["choice"])
    code, _, err = tm("no-such-model", "gone", "--include-path", tmp_path)
    assert code == 2 and "the data of task gone cannot be had" in err and "dataset_path: json" in err
    (tmp_path / "broken.yaml").write_text("task: odd\noutput_type: nonsense\ndataset_path: json")
    code, _, err = tm("no-such-model", "odd", "--include-path", tmp_path)
    assert code == 2 and "task odd cannot be loaded" in err
    code, _, err = tm("no-such-model", "choice", "--include-path", folder, "--limit", 0)
    assert code == 2 and "--limit" in err


def test_a_model_without_a_tokenizer_is_refused(tm, folder, tmp_path):
    code, _, err = tm(save("llama", tmp_path), "choice", "--include-path", folder)
    assert code == 2 and "has no tokenizer" in err


def test_ctrl_c_ends_the_command(tm, model, folder, monkeypatch):
    from tokenmill.engine.core import Core

    def interrupted(core, poll):
        raise KeyboardInterrupt

    monkeypatch.setattr(Core, "wait", interrupted)  # where the command is while the engine's thread makes steps
    assert tm(model, "choice", "--include-path", folder, "--limit", 2)[0] == 130


def python(*arguments, **variables):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=600, check=False)


def test_a_task_whose_data_is_elsewhere_is_refused(folder, tmp_path):
    (tmp_path / "far.yaml").write_text("task: far\ndataset_path: nobody/has-this\ntest_split: test\n" + TASKS["choice"])
    given = ("-m", "tokenmill", "eval", "tasks", "no-such-model", "far", "--include-path", tmp_path)
    done = python(*given, HF_HUB_OFFLINE="1")
    assert done.returncode == 2, done.stderr
    assert "the data of task far cannot be had" in done.stderr and "Traceback" not in done.stderr


def test_the_harness_own_command_knows_the_model(model, folder, tmp_path):
    how = (
        "--model",
        "tokenmill",
        "--model_args",
        f"pretrained={model},dtype=float32,threads=1",
        "--batch_size",
        "auto",
    )
    done = python("-m", "tokenmill.measure.harness", "run", *how, "--tasks", "choice", "--include_path", folder)
    assert done.returncode == 0, done.stderr
    assert "acc_norm" in done.stdout


def test_the_entry_point_names_the_registered_model():
    from lm_eval.api.registry import get_model

    from tokenmill.measure.harness.model import TokenmillLM

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = declared["lm_eval.models"]["tokenmill"].partition(":")
    assert (module, name) == (TokenmillLM.__module__, TokenmillLM.__name__)
    assert get_model("tokenmill") is TokenmillLM


def test_settings_of_the_harness_build_an_engine(model):
    from tokenmill.measure.harness.model import TokenmillLM

    lm = TokenmillLM.create_from_arg_string(f"pretrained={model},threads=1,max_length=64", {"batch_size": "3"})
    assert (lm.engine.config.max_sequences, lm.max_length) == (3, 64)
    assert TokenmillLM(model, max_batch_size=2, threads=1).engine.config.max_sequences == 2
    with pytest.raises(ConfigError, match="batch_size"):
        TokenmillLM(model, batch_size="many")
    assert not math.isnan(lm.engine.score("w1", ["w2"])[0])
