"""Schemas and tools as frameworks really send them: each is accepted, and every walk that ends fits it by jsonschema.

tests/constrain/corpus.jsonl holds requests of frameworks of Python and JavaScript, recorded by a server that kept their
bodies: the schema, the framework or frameworks that sent it, and the field that it came in.
"""

import json
import os
from pathlib import Path

import jsonschema
import pytest

from tests.constrain.walks import CLOSING, compiled, walk
from tokenmill.constrain.schema import annotations

LINES = (Path(__file__).parent / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
SCHEMAS = [json.loads(line) for line in LINES]
WALKS = int(os.environ.get("TOKENMILL_CORPUS_WALKS", "5"))  # for each schema
KINDS = (jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
CLOSERS = CLOSING + b"zq"  # with which texts of zod's endsWith("z") and includes("q") end
NOT_ENFORCED = "that the items differ, 'uniqueItems', is not enforced"  # of values that are many: a warning tells it


def named(row):
    return f"{row['sent_by'][0]}-{row['as']}-{row['schema'].get('title', '')}"


@pytest.mark.parametrize("row", SCHEMAS, ids=named)
def test_what_a_framework_sends_is_accepted_and_what_is_written_fits(bytes_only, row):
    schema = row["schema"]
    constraint, check = compiled(bytes_only, json_schema=json.dumps(schema)), validator(schema)
    may_repeat = any(NOT_ENFORCED in each for each in annotations(schema))
    for seed in range(WALKS):
        text, ended = walk(constraint, seed, most=600, closers=CLOSERS)
        if ended and check is not None:
            errors = list(check.iter_errors(json.loads(text)))
            wrong = [each.message for each in errors if not (may_repeat and each.validator == "uniqueItems")]
            assert wrong == [], text


def validator(schema):
    """jsonschema's own, of the first draft by whose rules the schema is one, with the formats that it knows. None where
    it is one by no draft, as one of semantic-kernel, in which a description is an object; it is accepted all the same.
    """
    for kind in KINDS:
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError:
            continue
        return kind(schema, format_checker=kind.FORMAT_CHECKER)
    return None


def test_the_corpus_is_of_many_frameworks_and_nearly_all_of_it_is_of_a_draft():
    assert len({name for row in SCHEMAS for name in row["sent_by"]}) >= 60
    assert sum(validator(row["schema"]) is None for row in SCHEMAS) <= 1
