"""Perplexity: windows as integers, the figure that transformers gives, `tokenmill eval perplexity` as it is typed."""

import io
import json
import math
import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

import tokenmill
from tests.tiny_models import VOCABULARY, prompt, reference
from tests.word_model import save_word_model
from tokenmill.errors import ConfigError, RequestError
from tokenmill.kernels import native_library
from tokenmill.measure import perplexity as module
from tokenmill.measure.perplexity import (
    Comparison,
    Perplexity,
    ScoredText,
    ScoredToken,
    ScoredWindow,
    choose_window,
    compare,
    perplexity,
    read_text,
    windows,
)
from tokenmill.text.tokenizer import Tokenizer

WORDS = [f"w{token}" for token in prompt(100)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model whose token i is the word "wi"."""
    return save_word_model(tmp_path_factory.mktemp("models"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS) + "\n")
    return path


@pytest.fixture
def tm(tm):
    return partial(tm, "eval", "perplexity")


def recipe(model, tokens, window, stride):
    """Hugging Face's "Perplexity of fixed-length models", each loss weighted by the tokens it is the mean of.

    The loss of transformers' logits is taken in float64: in float32 torch's log_softmax is 2e-5 off over 49,152 terms.
    """
    total, count, before = 0.0, 0, 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + window, len(tokens))
        ids = torch.tensor([tokens[begin:end]])
        labels = ids.clone()
        labels[:, : -(end - before)] = -100
        scored = int((labels[:, 1:] != -100).sum())
        if scored:
            with torch.no_grad():
                logits = model(ids).logits[0, :-1].double()
                total += scored * torch.nn.functional.cross_entropy(logits, labels[0, 1:]).item()
        count, before = count + scored, end
        if end == len(tokens):
            break
    return math.exp(total / count), count


# ---- windows


@given(st.integers(2, 300), st.integers(2, 60), st.data())
def test_every_token_but_the_first_is_scored_once(num_tokens, window, data):
    stride = data.draw(st.integers(1, window))
    spans = list(windows(num_tokens, window, stride))
    scored = [token for span in spans for token in range(span.first, span.end)]
    # Where windows do not overlap, nothing lies before the first token of each.
    unscored = range(0, num_tokens, stride) if stride == window else [0]
    assert scored == sorted({*range(num_tokens)} - {*unscored})
    for number, span in enumerate(spans):
        assert span.start == number * stride
        assert span.start < span.first < span.end <= span.start + window
        assert number == 0 or span.end - span.first <= stride


def test_windows_by_hand():
    assert list(windows(10, 4, 3)) == [ScoredWindow(0, 1, 4), ScoredWindow(3, 4, 7), ScoredWindow(6, 7, 10)]
    assert list(windows(9, 4, 4)) == [
        ScoredWindow(0, 1, 4),
        ScoredWindow(4, 5, 8),
    ]  # a last token alone follows nothing
    assert list(windows(3, 8, 1)) == [ScoredWindow(0, 1, 3)]


def test_the_defaults_follow_from_the_context():
    assert choose_window(None, None, 8192) == (1024, 512)
    assert choose_window(None, None, 128) == (128, 64)
    assert choose_window(2, None, 128) == (2, 1)
    assert choose_window(None, 128, 128) == (128, 128)
    for window, stride in [(129, None), (1, None), (0, None), (64, 0), (64, 65), (None, -1)]:
        with pytest.raises(ConfigError):
            choose_window(window, stride, 128)


# ---- the figure


@pytest.mark.parametrize("program", ["eager", "native"])
@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 8), (16, 5), (128, 64), (5, 1)])
def test_it_is_that_of_transformers(llama, program, window, stride):
    """1e-5 relative: the bound of float32 logits that differ in the order of their sums."""
    if program == "native" and native_library.why_not() is not None:
        pytest.skip(f"the library {native_library.why_not()}")
    tokens = prompt(101)
    engine = tokenmill.load(llama, program=program, dtype="float32", max_length=window, max_step_tokens=7)
    found = perplexity(engine, tokens, window, stride)
    expected, count = recipe(reference("llama"), tokens, window, stride)
    assert found.num_scored == count
    assert found.perplexity == pytest.approx(expected, rel=1e-5)
    assert found.num_windows == len(list(windows(101, window, stride)))


def test_a_model_that_knows_nothing_has_a_perplexity_of_its_vocabulary():
    engine = SimpleNamespace(logits=lambda tokens: torch.zeros(len(tokens), VOCABULARY))
    found = perplexity(engine, prompt(150), 100, 100)  # more rows than a chunk has
    assert found.perplexity == pytest.approx(VOCABULARY)


def test_an_engine_beside_itself_is_no_distance_away(llama):
    engine = tokenmill.load(llama, max_length=32)
    same = compare(engine, engine, prompt(80), 32, 16)
    assert same.ours.nll == same.reference.nll
    assert (same.kl_divergence, same.ratio) == (0.0, 1.0)


def test_the_divergence_is_that_of_the_probabilities():
    """The divergence goes from the reference to ours, not the other way."""
    ours, theirs = (torch.randn(70, 30, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    tokens = [token % 30 for token in prompt(70)]
    engines = [SimpleNamespace(logits=lambda _, rows=rows: rows) for rows in (ours, theirs)]
    found = compare(*engines, tokens, 70, 35)
    p, q = theirs[:-1].double().softmax(-1), ours[:-1].double().softmax(-1)
    assert found.kl_divergence == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-6)


def test_logits_that_overflow_are_refused():
    engine = SimpleNamespace(logits=lambda tokens: torch.full((len(tokens), 9), math.inf))
    engine.config = SimpleNamespace(dtype="float16")
    with pytest.raises(RequestError, match=r"1 to 3 is nan.*float16"):
        perplexity(engine, [1, 2, 3, 4, 5, 6], 4, 2)


def test_bytes_are_those_of_the_tokens_that_were_taken():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "é": 1, "ab": 2}, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = Tokenizer(backend)
    assert read_text("é ab ab\n", tokenizer) == ([0, 1, 2, 2], 3, 9)
    assert read_text("é ab ab\n", tokenizer, 3) == ([0, 1, 2], 2, 5)
    assert read_text("é ab ab\n", tokenizer, 99) == ([0, 1, 2, 2], 3, 9)


class Rows:
    """An engine whose logits after token i, of a vocabulary of four, are row i of what it was given."""

    config = SimpleNamespace(dtype="float32")

    def __init__(self, rows):
        self.rows = torch.tensor(rows)

    def logits(self, tokens):
        """Each token of these texts is its position modulo four, in order."""
        return self.rows[tokens]


def log(*chances):
    return [math.log(chance) for chance in chances]


OURS = [log(0.1, 0.7, 0.1, 0.1), log(0.1, 0.1, 0.7, 0.1), log(0.7, 0.1, 0.1, 0.1), log(0.25, 0.25, 0.25, 0.25)]
THEIRS = [log(0.1, 0.7, 0.1, 0.1), log(0.1, 0.1, 0.1, 0.7), log(0.1, 0.1, 0.1, 0.7), log(0.7, 0.1, 0.1, 0.1)]


class Told:
    """Notes how far it has come."""

    def __init__(self):
        self.said = []

    def advance(self, done, total):
        self.said.append((done, total))


def test_a_figure_by_hand():
    """Of 0 1 2 3 0 1: the chances of 1, 2, 3, 0, 1 are 0.7, 0.7, 0.1, 0.25, 0.7."""
    told, tokens = Told(), [0, 1, 2, 3, 0, 1]
    found = perplexity(Rows(OURS), tokens, 4, 2, told)
    nll = -sum(log(0.7, 0.7, 0.1, 0.25, 0.7))
    assert (found.num_tokens, found.num_scored, found.num_windows) == (6, 5, 2)
    assert found.nll == pytest.approx(nll) and found.elapsed_s > 0
    assert found.perplexity == pytest.approx(math.exp(nll / 5))
    assert told.said == [(0, 2), (1, 2), (2, 2)]


def test_a_comparison_by_hand():
    """At positions 1 to 3 after 0, 1 and 2: equal, KL of two swapped, the same again; then after 3 of another kind."""
    found = compare(Rows(OURS), Rows(THEIRS), [0, 1, 2, 3, 0, 1], 4, 2)
    swapped = 0.7 * math.log(7) + 0.1 * math.log(1 / 7)
    flat = 0.7 * math.log(2.8) + 0.3 * math.log(0.4)
    assert found.kl_divergence == pytest.approx((2 * swapped + flat) / 5, rel=1e-6)
    assert found.agreement == pytest.approx(3 / 5), "the first of equal ones is the likeliest"
    assert [place.position for place in found.worst] == [2, 3, 4, 1, 5]
    assert [place.kl_divergence for place in found.worst] == pytest.approx([swapped, swapped, flat, 0, 0], abs=1e-6)
    assert found.ratio == pytest.approx(found.ours.perplexity / found.reference.perplexity)
    assert found.reference.nll == pytest.approx(-sum(log(0.7, 0.1, 0.7, 0.7, 0.7)))


def test_ten_places_are_named():
    tokens = [0, 1, 2, 3] * 5
    worst = compare(Rows(OURS), Rows(THEIRS), tokens, 20, 20).worst
    assert len(worst) == 10 and worst == tuple(sorted(worst, key=lambda place: -place.kl_divergence))


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_rows_are_read_some_at_a_time(monkeypatch, rows):
    monkeypatch.setattr(module, "CHUNK_ROWS", rows)
    found = compare(Rows(OURS), Rows(THEIRS), [0, 1, 2, 3, 0, 1], 6, 3)
    assert found.ours.nll == pytest.approx(-sum(log(0.7, 0.7, 0.1, 0.25, 0.7)))
    assert [place.position for place in found.worst][:3] == [2, 3, 4]


def test_numbers_that_follow_from_others():
    found = Perplexity(num_tokens=9, num_scored=8, num_windows=2, nll=16.0, elapsed_s=4.0)
    assert (found.nll_per_token, found.perplexity, found.tokens_per_s) == (2.0, math.exp(2.0), 2.0)
    assert found.bits_per_byte(ScoredText([1], 6, 3)) == pytest.approx(2.0 / math.log(2) * 2)
    assert found.bits_per_byte(ScoredText([1], 0, 0)) == 0.0 and found.bits_per_byte(ScoredText([1], 1, 0)) > 2
    worse = Perplexity(9, 8, 2, 24.0, 1.0)
    assert Comparison(worse, found, 0.0, 1.0, (ScoredToken(1, 0.0),)).ratio == pytest.approx(math.e)


def test_windows_that_are_not_allowed_name_the_option():
    for window in (1, 129):
        said = f"window = {window} .set in --window. is not allowed: a whole number from 2 to this model's context, 128"
        with pytest.raises(ConfigError, match=said):
            choose_window(window, None, 128)
    for stride in (0, 65):
        said = f"stride = {stride} .set in --stride. is not allowed: a whole number from 1 to the window, 64"
        with pytest.raises(ConfigError, match=said):
            choose_window(64, stride, 128)
    assert choose_window(3, None, 128) == (3, 1) and choose_window(64, 64, 64) == (64, 64)


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_numbers_that_are_none_are_told_by_their_place(number):
    rows = [row.copy() for row in OURS]
    rows[2] = [number] * 4
    with pytest.raises(RequestError) as raised:
        perplexity(Rows(rows), [0, 1, 2, 3, 0, 1], 3, 2)
    said = (
        "the negative log-likelihood of tokens 3 to 4 is nan: the logits overflow in dtype float32; the model's files"
    )
    assert str(raised.value).startswith(said)


# ---- the command


def test_a_table_for_people(tm, model, text):
    code, out, err = tm(model, text, "--window", 16, "--dtype", "float32")
    assert code == 0
    expected, _ = recipe(reference("llama"), prompt(100), 16, 8)
    figures = dict(re.split("  +", line.strip()) for line in out.splitlines()[1:])
    assert float(figures["perplexity"]) == pytest.approx(expected, rel=1e-4)
    assert figures["tokens"] == "100"
    assert figures["scored tokens"] == "99"
    assert figures["windows"] == "12 of 16 tokens, stride 8"
    assert figures["program"].endswith(", float32, cpu")
    assert (figures["model"], figures["text"]) == (str(model), str(text))
    assert {"nll per token", "bits per byte", "seconds", "scored tokens/s"} <= set(figures)
    assert err.splitlines() == ["loading llama", "reading 100 tokens"]


def test_one_json_document_from_a_file_or_stdin(tm, model, text, monkeypatch):
    arguments = ("--window", 16, "--stride", 16, "--max-tokens", 50, "--json", "-q")
    code, out, err = tm(model, text, *arguments)
    assert (code, err, out.count("\n")) == (0, "", 1)
    document = json.loads(out)
    expected, count = recipe(reference("llama"), prompt(100)[:50], 16, 16)
    assert document["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert (document["num_tokens"], document["num_scored_tokens"], document["num_windows"]) == (50, count, 4)
    assert (document["window"], document["stride"], document["dense"]) == (16, 16, None)
    assert document["num_bytes"] == len(" ".join(WORDS[:50]))
    bits = document["nll_per_token"] / math.log(2) * 50 / document["num_bytes"]
    assert document["bits_per_byte"] == pytest.approx(bits)
    assert document["settings"]["max_length"] == 16
    assert {"program", "versions", "elapsed_s", "tokens_per_s"} <= set(document)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    again = json.loads(tm(model, "-", *arguments)[1])
    assert again["nll_per_token"] == document["nll_per_token"]
    assert again["file"] == "-"


def test_beside_dense_weights(tm, model, text):
    code, out, _ = tm(model, text, "--scheme", "q4", "--dtype", "bfloat16", "--compare-dense", "--json")
    document = json.loads(out)
    expected, _ = recipe(reference("llama"), prompt(100), 128, 64)
    assert code == 0
    assert document["dense"]["perplexity"] == pytest.approx(expected, rel=1e-5)
    ratio = document["perplexity"] / document["dense"]["perplexity"]
    assert document["dense"]["perplexity_ratio"] == pytest.approx(ratio)
    assert document["dense"]["kl_divergence"] > 0
    code, out, _ = tm(model, text, "--compare-dense")
    assert code == 0
    assert "perplexity ratio" in out
    assert "1.00000" in out


BAD = [
    (["--window", "129"], "from 2 to this model's context, 128"),
    (["--window", "1"], "--window"),
    (["--stride", "0"], "from 1 to the window, 128"),
    (["--window", "16", "--stride", "17"], "from 1 to the window, 16"),
    (["--max-tokens", "1"], "--max-tokens"),
    (["--window", "x"], "--window"),
    (["--max-length", "16"], "--max-length"),
    (["--dtype", "int3"], "float32"),
]


@pytest.mark.parametrize(
    ("arguments", "named"), BAD, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_bad_options_are_one_line(tm, model, text, arguments, named):
    refused(tm(model, text, *arguments), named)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "is empty"),
        (b"w1", "at least 2 tokens, and this text has 1"),
        (b"\n", "at least 2 tokens, and this text has 0"),
        (b"w1 w2 \xff w3", "is not valid UTF-8"),
    ],
)
def test_bad_texts_are_one_line(tm, model, tmp_path, data, named):
    (tmp_path / "bad.txt").write_bytes(data)
    refused(tm(model, tmp_path / "bad.txt"), named)
    refused(tm(model, tmp_path / "bad.txt"), "bad.txt")


def test_what_is_not_there_is_one_line(tm, model, llama, text):
    refused(tm(model, "/no/such/file"), "/no/such/file")
    refused(tm(model, text.parent), "directory")
    refused(tm("/no/such/model", text), "/no/such/model")
    refused(tm(llama, text), "has no tokenizer")
    refused(tm(model), "FILE")


def refused(result, named):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert named in err.splitlines()[-1]
    assert "Traceback" not in err


# ---- the real model

PROSE = (
    "The mill stood where the river bends, and for two hundred years it had turned whatever the farmers of the valley "
    "brought to it into flour. Wheat came in autumn, rye a little later, and in bad years, when the rain had taken "
    "both, people came with acorns and chestnuts and asked whether the stones would take those too. They did. A "
    "millstone does not ask what it grinds; it asks how fast the water runs. In dry summers the wheel stood still for "
    "weeks, and the miller, who had nothing else to do, cleaned the gears, cut new teeth of apple wood, and counted "
    "sacks. He kept his accounts in a book with a black cover: on the left what went in, on the right what came out, "
    "and between the two a thin column for what was lost as dust. That column interested nobody but him. Over the "
    "years he found that it grew when he hurried, that it shrank when the stones were newly dressed, and that it did "
    "not depend at all on whether one farmer's grain was ground alone or together with another's. "
)
