"""What is no receipt is refused, and the refusal names the field."""

import json

import pytest

from tokenmill import ReceiptError
from tokenmill.receipts import read
from tokenmill.receipts.read import checked_receipt, read_receipt
from tokenmill.receipts.receipt import hash_of


def put(document, path, value):
    *way, last = path.split(".")
    for key in way:
        document = document[key]
    if value is ...:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("receipt", 2, "has format 2, and this tokenmill reads 1: a newer one may read it"),
        ("receipt", True, "has format True"),
        ("receipt", ..., "has no 'receipt'"),
        ("hash", 5, "hash = 5 is not allowed: a text"),
        ("extra", 1, "keys that tokenmill does not know: extra = 1"),
        ("engine.extra", 1, "engine has keys that tokenmill does not know"),
        ("model.extra", 1, "model has keys that tokenmill does not know"),
        ("sampling.extra", 1, "sampling has keys that tokenmill does not know"),
        ("sampling.max_tokens", 1, "sampling has keys that tokenmill does not know"),
        ("sampling.n", 1, "sampling has keys that tokenmill does not know"),
        ("session.extra", 1, "session has keys that tokenmill does not know"),
        ("sampling.temperature", "hot", "temperature = 'hot' is not allowed"),
        ("sampling.seed", 2**64, "seed = 18446744073709551616 is not allowed"),
        ("sampling.max_new_tokens", ..., "at most max_new_tokens, which is 0"),
        ("sampling.max_new_tokens", 2, "tokens = '3 token ids' is not allowed: at most max_new_tokens, which is 2"),
        ("model.files", {"x": "0" * 63}, "64 hexadecimal digits"),
        ("model.files", [], "must be an object"),
        ("engine.compile", ["a"], "mode, phases, backend"),
        ("engine.program", "x" * 10_000, "engine: program"),
        ("engine.build", ..., "has no 'build'"),
        ("prompt", [], "prompt = [] is not allowed: at least one token id"),
        ("prompt", 5, "a list of token ids"),
        ("prompt", [-1], "token ids from 0"),
        ("tokens", [1.0], "token ids from 0"),
        ("tokens", [True], "token ids from 0"),
        ("tokens", [2**40], "token ids from 0"),
        ("finish_reason", "abort", "finish_reason = 'abort' is not implemented: only 'eos', 'stop', 'length'"),
        ("stop_reason", 1.5, "a text, a token id, or null"),
        ("session.answer_from", 3, "a whole number from 0 to 2"),
        ("session.before", {"stop": 5}, "stop = 5 is not allowed"),
        ("session", ..., "has no 'session', which is required, even where it is null"),
        ("text", None, "has no 'text'"),
    ],
)
def test_a_field_that_cannot_be(receipt, path, value, said):
    document = json.loads(str(receipt))
    put(document, path, value)
    document = document if path == "hash" else {**document, "hash": hash_of(document)}
    with pytest.raises(ReceiptError, match=r"^the receipt") as refusal:
        read_receipt(json.dumps(document))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("null", "must be an object"),
        ("[[[[", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"receipt": 1, "receipt": 1}', "the key 'receipt' stands twice"),
        ('{"receipt": NaN}', "NaN is no number of JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        ('{"receipt": 1' + "0" * 5000 + "}", "no JSON"),
        ('{"receipt": -1e999}', "-1e999 is no number that a receipt can have"),
    ],
)
def test_a_text_that_is_no_receipt(text, said):
    with pytest.raises(ReceiptError) as refusal:
        read_receipt(text, "x.json:3")
    assert said in str(refusal.value) and str(refusal.value).startswith("x.json:3")


def test_every_beginning_of_a_receipt_is_refused(receipt):
    text = str(receipt)
    for length in range(0, len(text), 7):
        with pytest.raises(ReceiptError, match="cut or damaged"):
            read_receipt(text[:length])


def test_a_size_that_is_absurd(receipt, monkeypatch):
    monkeypatch.setattr(read, "MAX_SIZE", 100)
    with pytest.raises(ReceiptError, match=r"has [\d,]+ characters: a receipt has at most 100"):
        read_receipt(str(receipt))


def test_an_edited_hash_is_read_and_noted(receipt):
    document = json.loads(str(receipt))
    document["hash"] = "0" * 64
    assert read_receipt(json.dumps(document)).is_changed
    document["tokens"][0], document["hash"] = 9, receipt.hash
    assert read_receipt(json.dumps(document)).is_changed


DEEP: object = 1
for _ in range(100_000):  # deeper than the C stack of any Python writes
    DEEP = {"a": DEEP}


@pytest.mark.parametrize("value", [DEEP, float("inf"), {"5": float("-inf")}, {"5": {1}}])
@pytest.mark.parametrize("path", ["sampling.json_schema", "sampling.logit_bias", "text", "stop_reason", "session"])
def test_values_that_no_hash_can_be_of(receipt, path, value):
    document = json.loads(str(receipt))
    put(document, path, value)
    with pytest.raises(ReceiptError, match=r"^the receipt"):
        checked_receipt(document)
