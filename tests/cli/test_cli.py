"""The command line as its user meets it: what goes to stdout, what to stderr, and the exit code."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import tokenmill
from tests.cli.conftest import TEMPLATE
from tests.tiny_models import VOCABULARY, save
from tests.weights.codes.test_of_others import coded_llama
from tokenmill.cli import generate
from tokenmill.cli.parser.command import Command
from tokenmill.cli.parser.options import option_name
from tokenmill.cli.process.display import progress_on_stderr
from tokenmill.kernels import native_library
from tokenmill.registry import VERBS
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import size

COMMAND = [sys.executable, "-c", "from tokenmill.cli.main import run; run()"]


# ---- options


@pytest.mark.parametrize("kind", [EngineConfig, SamplingParams])
def test_every_setting_has_its_option(kind):
    names = {field.name for field in fields(kind)} - {"model"}
    assert all(settings_of(kind)[name].help for name in names)
    options = {option for parameter in commands()["generate"].parameters for option in parameter.names}
    assert {option_name(name) for name in names} <= options


def commands():
    """Every verb by what is typed: "generate", "bench sweep"."""
    return {word: Command(word) for word in VERBS}


def options_of(kind, *without):
    return " ".join(option_name(name) for name in settings_of(kind) if name not in without)


ENGINE = options_of(EngineConfig, "model", "generation_config")
SAMPLING = f"-n {options_of(SamplingParams)}"
# Of a benchmark these follow from the point that is measured.
POINT = {
    "--tokenizer",
    "--max-sequences",
    "--max-waiting",
    "--prefix-cache",
    "--prefix-dir",
    "--prefix-limit",
    "--fingerprint",
    "--packed-cache",
    "--packed-limit",
    "--suffix-dir",
    "--suffix-limit",
    "--compile-in-background",
    "--aot-fallback",
}
FIXED = " ".join(sorted(set(ENGINE.split()) - POINT))
RUNG = set(
    "--block-size --cache --compile --compile-phases --aot-package --fuse --program --speculate --scheme".split()
)
CHAT_HAS_NOT = {"--n", "--logprobs", "--max-sequences", "--max-waiting", "--skip-special-tokens"}
OPTIONS = {
    "generate": f"""--chat --chat-template --generation-config --json --prompt -p --preset --prompt-file --quiet -q
        --receipt --stream --system --tokens --show-draft --trace --verbose -v --check-float32
        {ENGINE} {SAMPLING}""",
    "serve": f"""--api-key --api-key-file --batch-dir --chat-template --config --generation-config --host
        --keep-alive --log-format --lora-folder --max-file-size --max-queued-requests --max-stall --max-stored --memory
        --metrics-prefix
        --offline --port --quiet -q --record --replicas --seed --served-model-name --session-dir --shutdown-timeout
        --preset --ssl-certfile --ssl-keyfile --strict --timeout-keep-alive --tool-format --watch
        {" ".join(sorted(set(ENGINE.split()) - {"--max-waiting"}))}""",
    "launch": "--api-key --model --quiet -q --show --url",
    "bench run": f"""--batch -b --check --depth -d --json --output -o --quiet -q --repetitions -r --shape --tests -T
        {FIXED}""",
    "bench sweep": f"""--batch -b --check --json --new -n --no-cache --output -o --prompt -P --quiet -q --repetitions -r
        --shape {FIXED}""",
    "bench ladder": f"""--batch -b --check --json --new -n --output -o --prompt -P --quiet -q --repetitions -r --shape
        {" ".join(sorted(set(FIXED.split()) - RUNG))}""",
    "bench peers": f"""--batch -b --json --load-limit --new -n --only --output -o --peer --prompt -P --quiet -q
        --rounds -r --run-limit
        {" ".join(sorted(set(FIXED.split()) - set("--max-length --cache --device".split())))}""",
    "bench install-peer": "--again --quiet -q",
    "bench load": """--api-key --burstiness --chat --concurrency --detailed --goodput --ignore-eos --json --label
        --model --new --num-prompts --output -o --prompt --prompts --quiet -q --rate --seed --time-limit --url
        --vocab-size""",
    "bench machine": "--again --device --json --quiet -q --threads",
    "bench plot": "--json --output -o --quiet -q",
    "eval perplexity": """--compare-dense --json --max-tokens --quiet -q --stride --window
        --adapter --block-size --cache-format --device --dtype --exact --kernel --max-lora-rank --max-step-tokens
        --program --scheme --tensor-parallel --threads --tokenizer""",
    "eval compare": """--json --max-tokens --quiet -q --stride --text --window
        --adapter --block-size --cache-format --device --dtype --exact --kernel --max-lora-rank --max-step-tokens
        --program --scheme --tensor-parallel --threads --tokenizer""",
    "eval tasks": f"""--apply-chat-template --chat-template --include-path --json --limit --log-samples --num-fewshot
        --output -o --quiet -q --seed --system-instruction
        {" ".join(sorted(set(ENGINE.split()) - {"--max-waiting"}))}""",
    "batch": f"""--chat --chat-template --column --generation-config --join --json --model --output --output-prefix -o
        --prompt --quiet -q --served-model-name --shard --strict --system --window
        {" ".join(sorted({*ENGINE.split(), *SAMPLING.split()} - {"--max-waiting"}))}""",
    "profile": f"""--force --generation-config --json --level --output -o --prompt -p --quiet -q --tokens {ENGINE}
        {SAMPLING.replace("--ignore-eos", "")}""",
    "prove": """--ca-file --case --comparisons --concurrency --json --key --logprobs --max-tokens --model --quiet -q
        --request-timeout --requests --restart --seed --time --tolerance""",
    "agent-check": "--json --key --least --max-tokens --model --quiet -q --timeout --url",
    "verify": """--cache-tokens --chat-template --device --dtype --json --max-sequences --model --program --quiet -q
        --scheme --threads --tokenizer""",
    "merge": "--dtype --json --output -o --quiet -q",
    "pack": "--dtype --json --output -o --program --quiet -q --scheme",
    "compile": "--cache-format --compile-phases --device --dtype --json --output -o --quiet -q --scheme",
    "info": "--check --json --quiet -q --template --tensors",
    "plan": f"--check --json --memory --quiet -q {ENGINE}",
    "pull": "--dtype --offline --output -o --quiet -q --revision",
    "chat": f"""--chat-template --generation-config --open --plain --preset --quiet -q --system
        {" ".join({*ENGINE.split(), *SAMPLING.split()} - CHAT_HAS_NOT)}""",
    "prefill": f"--chat --force --json --output -o --prompt -p --prompt-file --quiet -q --system --tokens {ENGINE}",
    "decode": f"""--convert --force --generation-config --json --model --output -o --prompt -p --quiet -q --stream
        --tokens {ENGINE} {" ".join({*SAMPLING.split()} - {"--n"})}""",
    "embed": f"""--column --dimensions --each-line --force --normalize --output -o --output-prefix --pooling --prompt -p
        --prompt-file --prompt-name --quiet -q --rows --tokens --truncate {ENGINE}""",
    "rerank": f"""--each-line --instruction --prompt -p --prompt-file --query --quiet -q --top --truncate
        {ENGINE}""",
    "list": "--cache --dir --json --names",
    "rm": "--dir --dry-run --json --kept-only --quiet -q --yes -y",
    "presets": "--json",
    "cache list": "--json",
    "cache clear": "--json --quiet -q",
    "quantize": """--algorithm --evaluate --export --group --head --json --num-texts --output -o --quiet -q --scheme
        --seed --symmetric --target-bits --text --text-length""",
}


def test_the_options_are_these():
    """Scripts rely on them: a name that goes is a break. Those of settings follow the fields."""
    found = {
        name: sorted(option for parameter in command.parameters for option in parameter.names)
        for name, command in commands().items()
    }
    assert found == {name: sorted(text.split()) for name, text in OPTIONS.items()}


@pytest.mark.parametrize("verb", OPTIONS)
def test_help_teaches(tm, verb):
    code, out, _ = tm(*verb.split(), "--help")
    assert code == 0
    assert out.count(f"tokenmill {verb.removesuffix(' run')}") >= 3  # the usage line and at least two examples


def test_no_verb_shows_the_verbs(tm):
    code, out, _ = tm()
    assert code == 0
    assert all(verb.split()[0] in out for verb in OPTIONS)


def test_the_version_tells_what_is_there(tm, monkeypatch):
    code, out, _ = tm("--version")
    first, library, others = out.splitlines()
    assert (code, first) == (0, f"tokenmill {tokenmill.__version__}")
    assert re.fullmatch(
        r"native library: \w+, ABI \d+, built from .+|the native program's library was not built .+", library
    )
    assert re.fullmatch(r"Python 3\.\d+\.\S+, torch \d+\.\S+", others)
    monkeypatch.setattr("tokenmill.kernels.native_library.FILE", Path("none.so"))
    assert tm("--version")[1].splitlines()[1].startswith("the native program's library was not built when")


def test_help_imports_nothing_heavy():
    """Half a second for --help is out of reach once torch is imported."""
    code = (
        "import sys; from tokenmill.cli.main import main; "
        "heavy = set('torch numpy tokenizers transformers huggingface_hub gguf safetensors jinja2'.split()); "
        "heavy |= set('matplotlib httpx2 asyncio pydantic'.split()); "
        "[main([*verb.split(), '--help']) for verb in sys.argv[1:]]; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, "", *OPTIONS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_verb_imports_no_other():
    code = "import sys; from tokenmill.cli.main import main; main(['info', '-h']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {f"tokenmill.cli.{verb.split()[0]}" for verb in OPTIONS} & {*done.stderr.split()} == {"tokenmill.cli.info"}


# ---- generate


def test_text_on_stdout_and_one_line_of_figures_on_stderr(tm, model):
    code, out, err = tm("generate", model, "-p", "w1 w2 w3", "-n", 5)
    done = tokenmill.load(model).generate("w1 w2 w3", max_new_tokens=5)
    assert code == 0
    assert out == done.text + "\n"
    figures = err.splitlines()[-1].split(" · ")
    assert figures[0] == "3 prompt + 5 new tokens"
    assert figures[1].startswith("first token ")
    assert figures[2].endswith(" tokens/s")
    assert figures[3].startswith("float32 native, scheme ")
    assert figures[4] == done.hash


def test_streamed_or_at_the_end_or_from_a_file_or_stdin_is_the_same(tm, model, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text("w1 w2 w3\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w1 w2 w3\n")))
    ways = [
        ["-p", "w1 w2 w3"],
        ["-p", "w1 w2 w3", "--no-stream"],
        ["-p", "-"],
        ["--prompt-file", tmp_path / "prompt.txt"],
    ]
    outs = {tm("generate", model, "-n", 5, "-q", *way) for way in ways}
    assert len(outs) == 1
    code, out, err = outs.pop()
    assert (code, err) == (0, "")
    assert len(out.split()) == 5


def test_several_prompts_are_a_batch_with_headers(tm, model):
    code, out, err = tm(
        "generate", model, "-p", "w1", "--tokens", "2,3", "-n", 4, "--n", 2, "--temperature", 1, "--seed", 5
    )
    assert code == 0
    headers = [line for line in out.splitlines() if line.startswith("==>")]
    assert headers[0] == "==> prompt 1, continuation 1 <=="
    assert headers[3] == "==> prompt 2, continuation 2 <=="
    assert "4 texts · 6 prompt + 16 new tokens" in err


def test_json_is_one_document_or_a_list(tm, model):
    arguments = ["generate", model, "-n", 4, "--logprobs", 2, "--json", "-q", "-p", "w1 w2"]
    code, out, err = tm(*arguments)
    document = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert document["text"].split() == [f"w{token}" for token in document["tokens"]]
    assert document["finish_reason"] == "length"
    assert document["hash"] == tokenmill.load(model).generate("w1 w2", max_new_tokens=4).hash
    assert document["settings"]["max_new_tokens"] == 4
    assert document["settings"]["model"] == model
    assert len(document["logprobs"]) == 4
    timing = document["timing"]
    assert timing["total_s"] == pytest.approx(timing["ttft_s"] + sum(timing["itl_s"]))
    assert document["memory"]["peak_bytes"] > document["memory"]["weights_bytes"]
    assert {"tokenmill", "torch", "python"} <= set(document["versions"])
    assert document["program"]["reason"]
    _, out, _ = tm(*arguments, "-p", "w3")
    assert json.loads(out)[0]["tokens"] == document["tokens"]


def test_chat_goes_through_the_template(tm, model):
    _, chat, _ = tm("generate", model, "--chat", "--system", "w4", "-p", "w5", "-n", 3, "-q")
    _, plain, _ = tm("generate", model, "-p", "system w4 user w5 w9", "-n", 3, "-q")
    assert chat == plain


def test_a_model_without_a_tokenizer_speaks_in_ids(tm, wordless):
    _, out, _ = tm("generate", wordless, "--tokens", "1,2,3", "-n", 4, "-q")
    assert tuple(map(int, out.split())) == tokenmill.load(wordless).generate([1, 2, 3], max_new_tokens=4).tokens


def test_verbose_says_which_program_and_why(tm, model):
    _, _, err = tm("generate", model, "-p", "w1", "-n", 1, "-v")
    assert "program native: " in err


def test_ctrl_c_keeps_the_text_so_far(tm, monkeypatch):
    class Engine:
        tokenizer = True

        def stream(self, *_, **__):
            yield tokenmill.Piece("Hello", (1,))
            raise KeyboardInterrupt

    monkeypatch.setattr(generate, "load_engine", lambda *_: Engine())
    assert tm("generate", "-p", "x", "-q") == (130, "Hello\n", "")


# Shows the first piece, then waits for ever. SIGINT is set, since a test that runs in the background has it ignored.
PAUSED = """
import signal, time
from tokenmill.cli import generate
from tokenmill.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
show = generate.show
def paused(pieces):
    yield next(pieces)
    while True:  # short sleeps: a signal just before an endless one would not wake it
        time.sleep(0.01)
generate.show = lambda engine, pieces, *visible: show(engine, paused(pieces), *visible)
main.run()
"""


@pytest.mark.slow
def test_ctrl_c_by_signal(model):
    command = [sys.executable, "-c", PAUSED, "generate", model, "-p", "w1", "-n", "50", "--ignore-eos", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(1)  # from here on the child is at the pause, or about to be
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert (first + out).startswith(b"w") and (first + out).endswith(b"\n")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(model):
    arguments = ["generate", model, "-p", "w1", "-n", "50", "--ignore-eos", "-q"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_output_that_the_terminal_cannot_show_does_not_end_it(model):
    code = """
from tokenmill.cli import main
from tokenmill.cli.process.display import echo
main.main = lambda _: echo("caf\\u00e9 \\U0001f642")
main.run()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"caf\xe9 ?\n")


# Compiles for ever, and has begun to before the command ends.
COMPILING = """
import threading
from torch._dynamo import register_backend
from tokenmill.cli import main
begun, verb = threading.Event(), main.main
@register_backend(name="endless")
def endless(graph, inputs):
    begun.set()
    threading.Event().wait()
def when_begun(arguments):
    code = verb(arguments)
    begun.wait()
    return code
main.main = when_begun
main.run()
"""


@pytest.mark.slow
def test_the_end_does_not_wait_for_what_is_compiled_in_the_background(model):
    """Nor crash on it."""
    command = [sys.executable, "-c", COMPILING, "generate", model, "-p", "w1", "-n", "3", "-q"]
    command += ["--program", "compiled", "--compile-backend", "endless", "--compile-in-background"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout


# ---- bad input

BAD = [
    (["-p", ""], "is empty"),
    (["--tokens", "1,x"], "1,x"),
    (["--tokens", "1,211"], "0 to 210"),
    (["--prompt-file", "/no/such/file"], "/no/such/file"),
    (["-p", "w1", "--system", "w2"], "--chat"),
    (["--tokens", "1", "--chat"], "--chat"),
    (["-p", "w1", "--temperature", "-1"], "--temperature"),
    (
        ["-p", "w1", "--repetition-penalty", "1e-300"],
        "(set in --repetition-penalty) is not allowed: a number from 0.01",
    ),
    (["-p", "w1", "--top-p", "0"], "--top-p"),
    (["-p", "w1", "--top-k", "x"], "--top-k"),
    (["-p", "w1", "-n", "0"], "--max-new-tokens"),
    (["-p", "w1", "--seed", "-5"], "--seed"),
    (["-p", "w1", "--logit-bias", "5"], "ID=AMOUNT"),
    (["-p", "w1", "--logit-bias", "5=9999"], "--logit-bias"),
    (["-p", "w1", "--stop-token-ids", "1;2"], "--stop-token-ids"),
    (["-p", "w1", "--allowed-token-ids", "1,x"], "--allowed-token-ids"),
    (["-p", "w1", "--allowed-token-ids", "500"], "0 to 210"),
    (["-p", "w1", "--bad-words", " "], "not spaces alone"),
    (["-p", "w1", "--dtype", "int3"], "float32"),
    (["-p", "w1", "--device", "tpu"], "cpu"),
    (["-p", "w1", "--program", "quantum"], "eager"),
    (["-p", "w1", "--kernel", "quantum"], "rows"),
    (["-p", "w1", "--cache-format", "quantum"], "dense"),
    (["-p", "w1", "--max-length", "4096"], "128"),
    (["-p", "w1", "--threads", "0"], "--threads"),
    (["-p", "w1", "--scheme", "q5"], "q4"),
    (["-p", "w1", "--speculate", "quantum"], "suffix"),
    (["-p", "w1 " * 200], "200 tokens"),
    (["-p", "w1", "--no-such-option"], "--no-such-option"),
]


@pytest.mark.parametrize(
    ("arguments", "named"), BAD, ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else ""
)
def test_bad_input_is_one_line_that_names_it(tm, model, arguments, named):
    code, out, err = tm("generate", model, *arguments)
    assert code == 2
    assert out == ""
    message = err.splitlines()[-1]
    assert message.startswith("error: ")
    assert named in message
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", ["generate", "info", "plan", "pull"])
def test_no_model_is_one_line(refused, tmp_path, verb):
    prompt = ["-p", "x"] if verb == "generate" else []
    for name in ["/no/such/model", tmp_path, "smollm3"]:
        err = refused(verb, name, *prompt)
        assert err.startswith("error: ")
        assert str(name) in err
        assert err.count("\n") == 1


def test_no_such_verb(tm):
    code, _, err = tm("generat")
    assert code == 2
    assert "generat" in err
    assert err.count("\n") == 1


# ---- the other verbs


def test_pull_prints_where_it_lies(tm, model, tmp_path):
    assert tm("pull", model) == (0, model + "\n", "")
    code, out, _ = tm("pull", model, "-o", tmp_path / "out", "--dtype", "bfloat16", "-q")
    assert (code, out) == (0, f"{tmp_path / 'out'}\n")
    assert tokenmill.load(tmp_path / "out").config.dtype == "bfloat16"
    assert "--output" in tm("pull", model, "--dtype", "float32")[2]
    refused = (
        f"error: output = '{tmp_path / 'out'}' (set in --output) is not allowed: a directory that is new or empty\n"
    )
    for verb in ("pull", "quantize"):  # before a model is looked for, or anything is said to begin
        assert tm(verb, "no-such-model", "-o", tmp_path / "out") == (2, "", refused)
    config = tmp_path / "out" / "config.json"
    assert tm("pack", "no-such-model", "-o", config)[2] == (
        f"error: {config} is there and is not a packed model: give another name\n"
    )
    assert "use one of auto, float32" in tm("pull", "no-such-model", "-o", tmp_path / "new", "--dtype", "int3")[2]
    said = tm("pack", model, "-o", tmp_path / "x.packed", "--program", "eager")[2]
    assert said.startswith("loading llama\nerror: program = 'eager' (set in --program)") and "packing" not in said
    assert tm("pack", model, "-o", tmp_path / "x.packed")[2] == "loading llama\npacking llama\n"
    assert "is no AOT package" in tm("compile", "no-such-model", "-o", config)[2]


def test_pull_refuses_what_it_would_pass_over(tm, refused, model, tmp_path):
    for name, what in ((model, "is on this machine already"), ("smollm2-135m", "is a short name")):
        err = refused("pull", name, "--revision", "main")
        said = f"error: --revision = 'main' is not allowed: only with a hub name, owner/name: {name} {what}"
        assert err.startswith(said)
    assert "is a .json file, not a model: " in refused("pull", f"{model}/config.json")
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is not a model: " in tm("pull", tmp_path / "file")[2]
    assert tm("info", "/dev/null")[2].startswith("error: /dev/null is neither a directory nor a regular file")


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("gemma4", ["6 of 12, 2 for keys and values, in 2 layers", "6 of 16, 1 for keys and values, in 2 layers"]),
        ("glm4_moe_lite", ["6 of 20, one row of 32 for all of them"]),
        ("mamba2", []),
    ],
)
def test_info_says_the_heads_of_each_kind_of_layer(family, said, tm, models):
    lines = tm("info", save(family, models))[1].splitlines()
    assert [line.split(maxsplit=1)[1].strip() for line in lines if line.lstrip().startswith("heads")] == said


def test_info_says_what_is_in_it(tm, model, wordless):
    code, out, _ = tm("info", model, "--json", "--tensors")
    facts = json.loads(out)
    assert code == 0
    assert (facts["family"], facts["num_layers"], facts["vocab_size"]) == ("llama", 2, VOCABULARY)
    assert facts["num_parameters"] == sum(facts["parameters"].values())
    assert facts["num_parameters"] * 4 == facts["types"]["float32"]["num_bytes"]
    assert len(facts["tensors"]) == facts["types"]["float32"]["count"]
    assert facts["tokenizer"] == {"num_tokens": VOCABULARY}
    assert facts["chat_template"] is True
    loaded = tokenmill.load(model)
    build = native_library.usable_build()
    assert build is None or f"program native, build {build}, in " in tm("info", model)[1]
    assert facts["runs"] == {
        "program": loaded.program_name,
        "build": build,
        "dtype": loaded.config.dtype,
        "scheme": loaded.config.scheme,
        "refusals": loaded.program_refusals,
    }
    _, out, _ = tm("info", model, "--tensors")
    assert "model.layers.1.self_attn.q_proj.weight" in out
    assert tm("info", model, "--template")[:2] == (0, TEMPLATE + "\n")
    assert tm("info", wordless, "--template")[0] == 2
    assert "prompts are token ids" in tm("info", wordless)[1]


def test_what_is_read_as_values_is_said(tm, tmp_path):
    path = coded_llama("nf4", tmp_path / "m")
    said = "read as values, since no scheme holds such codes: 2 of its 2 matrices have codes of the table NF4"
    assert said in json.loads(tm("info", path, "--json")[1])["dequantized"]
    assert "of the table NF4" in tm("info", path)[1] and tm("plan", path)[0] == 0
    for _ in range(2):  # the second load may be of a packed copy
        assert said in tm("generate", path, "--tokens", "1,2,3", "-n", "2")[2]
    assert tm("pack", path, "-o", tmp_path / "packed")[0] == 0
    assert said in tm("generate", tmp_path / "packed", "--tokens", "1,2,3", "-n", "2")[2]
    codes = coded_llama("MLX affine 4 by 64", tmp_path / "codes")
    assert json.loads(tm("info", codes, "--json")[1])["dequantized"] is None
    assert "read as values" not in tm("generate", codes, "--tokens", "1,2,3", "-n", "2")[2]


def test_plan_says_whether_it_fits(tm, model):
    code, out, _ = tm("plan", model, "--check", "--json", "-q")
    facts = json.loads(out)
    assert code == 0
    for name in ("weights_bytes", "cache_bytes"):
        assert facts["predicted"][name] == facts["allocated"][name]
    loaded = tokenmill.load(model)
    assert (facts["scheme"], facts["program"]["name"]) == (loaded.config.scheme, loaded.program_name)
    code, out, _ = tm("plan", model, "--check")
    assert code == 0
    assert f"in float32, scheme {loaded.config.scheme}, program {loaded.program_name} on cpu" in out
    assert "allocated" in out
    assert "\nfits: " in out
    code, out, _ = tm("plan", model, "--cache-tokens", 10**15)
    assert code == 2
    assert "does not fit: lower " in out


@pytest.mark.parametrize(
    "num_bytes, text", [(0, "0 B"), (999, "999 B"), (1536, "1.5 kB"), (2e9, "2.0 GB"), (3e12, "3.0 TB")]
)
def test_sizes_for_people(num_bytes, text):
    assert size(num_bytes) == text


def test_progress_is_lines_off_a_terminal_and_a_bar_on_one(capsys, monkeypatch):
    with progress_on_stderr() as progress:
        progress.stage("loading")
        progress.advance(1, 2)
    assert capsys.readouterr().err == "loading\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_on_stderr() as progress:
        progress.stage("loading")
        progress.advance(1, 2)
    captured = capsys.readouterr()
    assert "loading" in captured.err
    assert captured.out == ""


# ---- the real model


@pytest.mark.model
def test_the_default_model_answers(tm):
    code, out, err = tm("generate", "--chat", "-p", "What is the capital of France? One word.", "-n", 24)
    assert code == 0
    assert "Paris" in out
    assert "bfloat16 native" in err
    code, out, _ = tm("info", "--json")
    facts = json.loads(out)
    assert facts["num_parameters"] == 134_515_008
    assert facts["types"]["Q4_1"]["count"] == 210
    assert facts["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * 2


def test_tasks_without_the_extra_say_what_to_install(refused, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tokenmill.measure.harness")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    err = refused("eval", "tasks", "no-such-model", "arc_easy")
    assert "eval tasks needs lm_eval" in err and "pip install 'tokenmill[eval]'" in err
