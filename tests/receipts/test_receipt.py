"""A receipt is the same after it was written and read, and its hash is that of what it says."""

import json
from dataclasses import replace
from hashlib import sha256

from tokenmill.receipts.read import read_receipt
from tokenmill.receipts.receipt import hash_of, sampling_facts
from tokenmill.settings.sampling_params import SamplingParams


def test_it_is_read_as_it_was_written(receipt):
    again = read_receipt(str(receipt))
    assert again == receipt and not again.is_changed and again.hash == receipt.hash
    assert "\n" not in str(receipt) and json.loads(str(receipt)) == receipt.document
    assert read_receipt(json.dumps(receipt.document, indent=2, ensure_ascii=True).encode()) == receipt


def test_the_hash_is_as_documented(receipt):
    """docs/receipts.md, with Python's json alone."""
    facts = json.loads(str(receipt))
    claimed = facts.pop("hash")
    facts["sampling"]["temperature"] = 1  # as written where it is whole
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    assert claimed == sha256(canonical.encode("ascii")).hexdigest()


def test_half_of_a_pair_is_written(receipt):
    half = replace(receipt, sampling=replace(receipt.sampling, stop="\udcff"))
    assert str(half).isascii() and read_receipt(str(half).encode()) == half


def test_other_spelling_of_the_same_values_changes_nothing(receipt):
    """JavaScript writes 1.0 as 1, and anybody may sort the keys."""
    document = json.loads(str(receipt))
    document["sampling"]["temperature"] = 1
    assert not read_receipt(json.dumps(dict(reversed(document.items())), indent=1)).is_changed


def test_every_value_counts(receipt):
    others = (
        replace(receipt, tokens=(3, 4, 6)),
        replace(receipt, prompt=(1, 2, 3)),
        replace(receipt, text="w3 e"),
        replace(receipt, sampling=replace(receipt.sampling, seed=8)),
        replace(receipt, session=None),
        replace(receipt, stop_reason=5),
        replace(receipt, stop_reason="5"),
        replace(receipt, model={**receipt.model, "name": "other"}),
    )
    assert len({each.hash for each in (receipt, *others)}) == len(others) + 1


def test_settings_are_those_that_are_not_the_default():
    assert sampling_facts(SamplingParams()) == {"max_new_tokens": None, "seed": None}
    given = SamplingParams(logit_bias={5: float("-inf"), 6: 1.5}, n=3, logprobs=4, bad_words="a", top_p=0.5)
    assert sampling_facts(given) == {
        "max_new_tokens": None,
        "seed": None,
        "logit_bias": {"5": "-inf", "6": 1.5},
        "bad_words": ["a"],
        "top_p": 0.5,
    }


def test_hash_leaves_the_hash_out():
    assert hash_of({"a": 1, "hash": "x"}) == hash_of({"a": 1.0})
