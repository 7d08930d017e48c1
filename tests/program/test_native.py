"""The native program: eager's numbers, and the same bits however they were computed."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import hatch_build
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tokenmill
from tests.marks import QUICK_FAMILIES, covering, needs_native, skip_unless_it_runs
from tests.program import sanitized
from tests.tiny_models import KINDS, prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.kernels import native_library
from tokenmill.program.native.program import Native

FAMILIES = KINDS
BEST = native_library.best_build() if native_library.why_not() is None else None
LONG = prompt(97, seed=5)

pytestmark = needs_native


def native(path, dtype="float32", **settings):
    return load(path, program="native", dtype=dtype, **{"threads": 1, **settings})


@cache
def eager_logits(path, **settings):
    """Computed once for all builds."""
    return load(path, program="eager", dtype="float32", **settings).logits(LONG)


def save_sized(path, kind, seed, **sizes):
    """A model of any sizes, with 101 tokens."""
    config = transformers.AutoConfig.for_model(kind, vocab_size=101, **sizes)
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)


@pytest.fixture
def build(request, monkeypatch):
    """One of the builds of the kernels, where this processor runs it."""
    skip_unless_it_runs(request.param)
    monkeypatch.setattr(Native, "build", request.param)


@pytest.mark.parametrize("build", native_library.BUILDS, indirect=True)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_eager(family, build, models):
    """float32 on both sides; the sums run in another order: 48 terms of size 1, a few units in the last place."""
    path = save(family, models)
    torch.testing.assert_close(native(path).logits(LONG), eager_logits(path), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *(pytest.param(family, "float32 dense", id=f"{family}-float32 dense") for family in FAMILIES),
        *covering(FAMILIES, ["bfloat16 q4", "float32 q8", "bfloat16 dense", "float16 dense"], QUICK_FAMILIES),
    ],
)
def test_builds_agree(family, form, models, monkeypatch):
    """To the bit where the processor multiplies and adds with one rounding.

    The matrix unit sums bfloat16 in an order of its own, whose last bits rounding to bfloat16 makes 2**-9 here and
    there (0.03 of the logits' spread allowed). Its integers are the same. The portable build on x86 rounds twice:
    activations in 8 bits then turn to their neighbour here and there, which was worth 0.04 of the logits' spread (0.1
    allowed).
    """
    path, (dtype, scheme) = save(family, models), form.split()
    logits = {}
    for build in native_library.builds():
        monkeypatch.setattr(Native, "build", build)
        logits[build] = native(path, dtype, scheme=scheme).logits(LONG)
    best = logits[native_library.builds()[0]]
    if "amx" in logits and dtype == "bfloat16" and scheme == "dense":
        assert (logits["amx"] - logits["avx512"]).abs().max() <= 0.03 * best.std()
        best = logits["avx512"]
    for build in logits.keys() - {"amx", "portable"}:
        assert torch.equal(logits[build], best), build
    allowed = 1e-5 if dtype == "float32" and scheme == "dense" else 0.1
    assert (logits["portable"] - best).abs().max() <= allowed * best.std()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_builds_agree_where_numbers_are_subnormal(dtype, models, tmp_path, monkeypatch):
    """The instructions for bfloat16 take them as zero; here values of 1e-40 would become numbers of size 1 again."""
    path = tmp_path / "subnormal"
    shutil.copytree(save("llama", models), path)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        scale = 1e-38 if "v_proj" in name else 1e38 if "o_proj" in name else 1
        tensors[name] = tensor * scale
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    logits = {}
    for build in native_library.builds():
        monkeypatch.setattr(Native, "build", build)
        logits[build] = native(path, dtype, packed_cache=False).logits(LONG)
    exact = [logits[build] for build in native_library.builds() if build not in ("amx", "portable")]
    assert all(torch.equal(each, exact[0]) for each in exact) and exact[0].isfinite().all()
    assert (torch.tensor([1e-39]) / 2).item() > 0  # the thread that called computes with them as before


WAYS = [
    {"max_step_tokens": 1},
    {"max_step_tokens": 2, "block_size": 1},
    {"max_step_tokens": 16, "threads": 2},
    {"max_step_tokens": 17, "block_size": 3},
    {"max_step_tokens": 50},
    {"max_step_tokens": 5, "threads": 3},
    {"threads": 4, "block_size": 16},
]
"""Each is a load, which takes ten times what the logits take."""

OTHER_WAYS = [{"max_step_tokens": 7}, {"block_size": 3, "max_step_tokens": 20}, {"threads": 2}]


@pytest.mark.parametrize(
    ("family", "build"),
    [
        pytest.param(family, build, marks=() if build == BEST or family in QUICK_FAMILIES else pytest.mark.long)
        for family in ("llama", "gpt2", "qwen3", "mixtral")
        for build in native_library.BUILDS
    ],
    indirect=["build"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ways", [WAYS, pytest.param(OTHER_WAYS, marks=pytest.mark.long)], ids=["some", "others"])
def test_the_same_bits_for_any_chunk_thread_and_block(family, dtype, ways, build, models):
    path = save(family, models)
    whole = native(path, dtype).logits(LONG)
    for settings in ways:
        assert torch.equal(native(path, dtype, **settings).logits(LONG), whole), settings


@pytest.mark.parametrize(
    "build",
    [build if build == BEST else pytest.param(build, marks=pytest.mark.slow) for build in native_library.BUILDS],
    indirect=True,
)
@pytest.mark.parametrize(("heads", "head_dim", "window"), [(6, 32, None), (4, 64, 40), (1, 96, None)])
def test_the_same_bits_where_heads_are_wide(heads, head_dim, window, build, tmp_path):
    """Heads that a matrix unit takes whole, beside each other in its tiles or alone, one with a window."""
    sizes = {"hidden_size": heads * head_dim, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": head_dim}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": max(1, heads // 3), "max_position_embeddings": 512}
    if heads == 4:
        sizes["num_key_value_heads"] = 2
    save_sized(tmp_path, "mistral", seed=4, sliding_window=window, **sizes)
    tokens = [token % 101 for token in prompt(300, seed=6)]
    whole = native(tmp_path, "bfloat16").logits(tokens)
    for settings in (
        {"max_step_tokens": 1},
        {"max_step_tokens": 3, "threads": 2},
        {"max_step_tokens": 20, "block_size": 3},
        {"threads": 2, "block_size": 16},
    ):
        assert torch.equal(native(tmp_path, "bfloat16", **settings).logits(tokens), whole), settings
    eager = load(tmp_path, program="eager", dtype="float32").logits(tokens)
    assert (whole - eager).abs().max() <= 0.05 * eager.std()  # bfloat16 against float32


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "scheme"), [("float32", "dense"), ("float16", "dense"), ("bfloat16", "q4")])
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_the_same_bits_where_rows_are_wide(kind, dtype, scheme, tmp_path):
    """So wide that the tokens of a chunk pass over the weights in rounds of 64."""
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2} if kind == "mixtral" else {}
    sizes = {"hidden_size": 64, "intermediate_size": 8200, "num_attention_heads": 2, "num_key_value_heads": 2}
    save_sized(tmp_path, kind, seed=2, num_hidden_layers=1, max_position_embeddings=256, **sizes, **experts)
    tokens = [token % 101 for token in prompt(200, seed=3)]
    settings = {"scheme": scheme, "packed_cache": False}
    pieces = native(tmp_path, dtype, max_step_tokens=50, **settings).logits(tokens)
    for threads in (1, 2, 3):
        assert torch.equal(native(tmp_path, dtype, threads=threads, **settings).logits(tokens), pieces)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_same_bits_beside_any_neighbours(dtype, models):
    """Log-probabilities carry every bit of the logits into the output."""
    path = save("llama", models)
    prompts = [prompt(length, seed=length) for length in (1, 2, 15, 16, 17, 40, 64)]
    alone = native(path, dtype, max_sequences=1)
    together = native(path, dtype, max_sequences=8, block_size=8, max_step_tokens=33, threads=2)
    settings = {"max_new_tokens": 20, "logprobs": 3}
    expected = [alone.generate(one, **settings) for one in prompts]
    for ours, theirs in zip(together.generate(prompts, **settings), expected, strict=True):
        assert ours.tokens == theirs.tokens and ours.logprobs == theirs.logprobs


def test_sizes_that_are_no_multiple_of_anything(tmp_path):
    sizes = {
        "hidden_size": 70,
        "intermediate_size": 67,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 14,
    }
    save_sized(tmp_path, "llama", seed=1, num_hidden_layers=2, max_position_embeddings=128, **sizes)
    for dtype, bound in {"float32": 2e-5, "bfloat16": 0.05, "float16": 0.006}.items():  # 8 and 11 bits, two layers
        ours = native(tmp_path, dtype)
        eager = load(tmp_path, program="eager", dtype=dtype).logits([t % 101 for t in LONG]).float()
        torch.testing.assert_close(ours.logits([t % 101 for t in LONG]), eager, atol=bound, rtol=bound)


@pytest.mark.parametrize("head_dim", [80, 100, 128])
def test_wide_heads_in_whole_chunks(head_dim, tmp_path):
    """64 tokens of one head are as many as a thread's desk ever holds of a unit; 80 is no multiple of 32."""
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": head_dim}
    sizes = {"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 256}
    save_sized(tmp_path, "llama", seed=3, **sizes, **heads)
    tokens = [t % 101 for t in prompt(200, seed=6)]
    eager = load(tmp_path, program="eager", dtype="float32").logits(tokens)
    for threads in (1, 2):
        torch.testing.assert_close(native(tmp_path, threads=threads).logits(tokens), eager, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("num", "chosen"),
    [(64, 8), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 1), (16, 16), (160, 1)))],
)
def test_many_experts(num, chosen, tmp_path):
    """Most experts have no token in a step, some have one of a few, and a few have many; or one or all have all."""
    experts = {"num_experts": num, "num_experts_per_tok": chosen, "moe_intermediate_size": 40}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 512}
    save_sized(tmp_path, "qwen3_moe", seed=7, **sizes, **heads, **experts)
    tokens = [t % 101 for t in prompt(150, seed=6)]
    ours = native(tmp_path, max_length=150, threads=4).logits(tokens)
    eager = load(tmp_path, program="eager", dtype="float32", max_length=150).logits(tokens)
    torch.testing.assert_close(ours, eager, atol=2e-5, rtol=1e-5)
    for settings in ({"max_step_tokens": 1}, {"max_step_tokens": 20, "threads": 3}):
        assert torch.equal(native(tmp_path, max_length=150, **settings).logits(tokens), ours)


def test_a_window_and_long_sequences(models):
    """Past the window and past many splits of 128 positions, in short and long chunks."""
    path = save("mistral", models)
    tokens = prompt(120, seed=2)
    eager = load(path, program="eager", dtype="float32").logits(tokens)
    for chunk in (1, 5, 64):
        torch.testing.assert_close(native(path, max_step_tokens=chunk).logits(tokens), eager, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.model
def test_the_real_model_says_the_same_bits_in_pieces():
    engine = load("smollm2-135m", program="native", max_length=700, max_step_tokens=512)
    tokens = (engine.encode("A water mill takes its work from a river, and a miller listens. ") * 30)[:400]
    whole = engine.logits(tokens)
    pieces = load("smollm2-135m", program="native", max_length=700, max_step_tokens=61, block_size=16, threads=1)
    assert torch.equal(pieces.logits(tokens), whole)


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": "float16", "cache_format": "int8"}],
)
def test_a_row_that_is_not_finite_changes_no_earlier_one(settings, tmp_path):
    """All tokens from it on are NaN, as in eager, in any chunk, and those before it have the bits they always had."""
    path, token, at = save("llama", tmp_path), 7, 40
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][token] = float("nan")
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    before = [one for one in LONG if one != token][:at]
    tokens = [*before, token, *LONG[:9]]
    wanted = native(path, max_length=100, packed_cache=False, **settings).logits(before)
    for chunk in (1, 7, 30, 512):
        found = native(path, max_length=100, packed_cache=False, max_step_tokens=chunk, **settings).logits(tokens)
        assert torch.equal(found[:at], wanted) and found[at:].isnan().all(), chunk


def test_two_engines_at_the_same_time(models):
    engines = [native(save(name, models), threads=2) for name in ("llama", "gpt2")]
    expected = [engine.generate(LONG, max_new_tokens=20).tokens for engine in engines]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda engine: [engine.generate(LONG, max_new_tokens=20).tokens for _ in range(5)], engines)
    assert list(found) == [[tokens] * 5 for tokens in expected]


def test_the_decoders_matrices_are_given_up(models):
    engine = native(save("llama", models))
    decoder_bytes = engine.memory["weights_bytes"]
    assert decoder_bytes == engine.core.loaded.program.num_weight_bytes
    assert not any(hasattr(value, "weight") for value in vars(engine.core.loaded.program).values())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"scheme": "packed"}, "does not run scheme packed, only dense"),
        ({"kernel": "gather"}, "attends by itself, and kernel gather was asked for"),
    ],
)
def test_what_it_cannot_do_is_refused_and_eager_does_it(settings, says, models):
    path = save("llama", models)
    with pytest.raises(ConfigError, match=says):
        load(path, **{"program": "native", "dtype": "float32", **settings})
    assert tokenmill.load(path, **{"dtype": "float32", **settings}).program_name == "eager"


def test_without_the_library_it_says_what_to_do(models, monkeypatch, tmp_path):
    monkeypatch.setattr(native_library, "FILE", tmp_path / "none.so")
    with pytest.raises(ConfigError, match=r"its library was not built .* install a C\+\+ compiler"):
        native(save("llama", models))
    monkeypatch.setattr(native_library, "FILE", tmp_path / "damaged.so")
    native_library.FILE.write_bytes(b"no library")
    native_library.library.cache_clear()
    with pytest.raises(ConfigError, match="its library does not load"):
        native(save("llama", models))
    native_library.library.cache_clear()


@pytest.mark.parametrize("build", native_library.BUILDS, indirect=True)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_bigcode"])
def test_the_cache_in_bytes(family, build, models):
    """Both programs store the same codes, but for entries whose last bit decides between two; then 1 / 254 of a row."""
    path = save(family, models)
    ours = native(path, cache_format="int8")
    found, expected = ours.logits(LONG), eager_logits(path, cache_format="int8")
    assert (found - expected).pow(2).mean().sqrt() < 0.01 * expected.pow(2).mean().sqrt()
    for settings in ({"max_step_tokens": 1}, {"max_step_tokens": 7, "block_size": 3, "threads": 2}):
        assert torch.equal(native(path, cache_format="int8", **settings).logits(LONG), found)


def test_the_cache_in_bytes_is_half_as_large(models):
    path = save("llama", models)
    dense, small = (native(path, "bfloat16", cache_format=name).memory["cache_bytes"] for name in ("dense", "int8"))
    assert small / dense == (8 + 4) / 16  # heads of 8: of 64 it would be 68 / 128


@pytest.mark.compiler
def test_kernels_and_steps_under_the_sanitizer(tmp_path):
    """The best build, odd sizes, exact buffers: no read or write outside, no undefined shift. Each build takes a
    compiler three minutes, so `make test-sanitized` has the others, and looks for races.
    """
    if hatch_build.compiler() is None:
        pytest.skip("no C++ compiler")
    _, programs = sanitized.build_for_memory(tmp_path, native_library.builds()[:1])
    for program in programs:
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(": 0 differences") == 1
