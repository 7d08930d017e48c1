"""Random walks through the masks of a constraint: texts that a model without any sense would write under it."""

import json
import random
from decimal import Decimal
from functools import cache

import jsonschema
import numpy as np

from tokenmill.constrain.compile import compile
from tokenmill.constrain.grammar import spec_of
from tokenmill.constrain.schema import annotations
from tokenmill.settings.sampling_params import SamplingParams

CLOSING = b'"]},:0'
DRAFTS = (jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
NOT_ENFORCED = "that the items differ, 'uniqueItems', is not enforced"  # of values that are many: a warning tells it


def compiled(vocabulary, **settings):
    """The constraint of settings."""
    return compile(spec_of(SamplingParams(**settings)), vocabulary)


def allowed(matcher, vocabulary):
    """The ids that may come."""
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    assert not matcher.is_error(), matcher.get_error()[:200]
    bits = np.unpackbits(mask, bitorder="little")
    assert not bits[32 * vocabulary.words :].any()
    return np.flatnonzero(bits).tolist()


def walk(constraint, seed, most=200, closers=CLOSING):
    """The bytes of a walk, and whether it came to an end. Half of the steps take a token that closes something."""
    chance, matcher, vocabulary = random.Random(seed), constraint.first.deep_copy(), constraint.vocabulary
    tokens, closing = [], {number for byte in closers for number in vocabulary.tokens.greedy_tokenize(chr(byte))}
    while len(tokens) < most:
        found = allowed(matcher, vocabulary)
        assert found, f"nothing may follow {vocabulary.tokens.decode_bytes(tokens)!r}"
        ends = set(vocabulary.ends).intersection(found)
        assert bool(ends) == matcher.is_accepting()
        if ends and (chance.random() < 0.5 or len(ends) == len(found)):
            return vocabulary.tokens.decode_bytes(tokens), True
        found = [number for number in found if number not in ends] if ends else found
        if chance.random() < 0.5:
            found = sorted(closing.intersection(found)) or found
        tokens.append(chance.choice(found))
        assert matcher.consume_token(tokens[-1])
    return vocabulary.tokens.decode_bytes(tokens), False


def accepts(constraint, text):
    """Whether a whole text, a token per byte or longer ones, fits."""
    matcher, vocabulary = constraint.first.deep_copy(), constraint.vocabulary
    tokens = vocabulary.tokens.tokenize_str(text)
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


@cache
def validator(text):
    """jsonschema's own for the text of a schema: of the draft that it names or the first by whose rules it is one, with
    the formats that it knows. None where it is one by no draft, as one of semantic-kernel, in which a description is an
    object; it is accepted all the same.
    """
    schema = json.loads(text)
    for kind in (jsonschema.validators.validator_for(schema, DRAFTS[0]), *DRAFTS):
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError:
            continue
        return kind(schema, format_checker=kind.FORMAT_CHECKER)
    return None


def faults(schema, value):
    """What jsonschema says against a value, but for what an answer's warnings tell."""
    check = validator(json.dumps(schema))
    errors = check.iter_errors(value) if check is not None else ()
    return [each.message for each in errors if not _is_excused(schema, each)]


def _is_excused(schema, error):
    """Whether an answer's warnings tell it, or jsonschema divides by a fraction as floats: 0.47 / 0.01 is 46.99…"""
    if error.validator == "multipleOf":
        return Decimal(str(error.instance)) % Decimal(str(error.validator_value)) == 0
    return error.validator == "uniqueItems" and _may_repeat(schema)


def _may_repeat(schema):
    return any(NOT_ENFORCED in each for each in annotations(schema))


def compact(value):
    """A value as JSON without white space, which is how constrained texts are written."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
