"""Schemas and tools as frameworks really send them: each is accepted, and every walk that ends fits it by jsonschema.

tests/constrain/corpus.jsonl holds requests of frameworks of Python and JavaScript, recorded by a server that kept their
bodies: the schema, the framework or frameworks that sent it, and the field that it came in.
"""

import json
import os
from itertools import islice
from pathlib import Path

import pytest

from tests.constrain.walks import CLOSING, compiled, faults, validator, walk

LINES = (Path(__file__).parent / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
SCHEMAS = [json.loads(line) for line in LINES]
WALKS = int(os.environ.get("TOKENMILL_CORPUS_WALKS", "0"))  # for each schema
ENDED, MOST = (WALKS, WALKS) if WALKS else (2, 5)  # by default walks that end, among so many, since most do
CLOSERS = CLOSING + b"zq"  # with which texts of zod's endsWith("z") and includes("q") end


def named(row):
    return f"{row['sent_by'][0]}-{row['as']}-{row['schema'].get('title', '')}"


@pytest.mark.parametrize("row", SCHEMAS, ids=named)
def test_what_a_framework_sends_is_accepted_and_what_is_written_fits(bytes_only, row):
    constraint = compiled(bytes_only, json_schema=json.dumps(row["schema"]))
    walks = (walk(constraint, seed, most=600, closers=CLOSERS) for seed in range(MOST))
    ended = list(islice((text for text, ends in walks if ends), ENDED))
    assert ended
    assert [(text, wrong) for text in ended if (wrong := faults(row["schema"], json.loads(text)))] == []


def test_the_corpus_is_of_many_frameworks_and_nearly_all_of_it_is_of_a_draft():
    assert len({name for row in SCHEMAS for name in row["sent_by"]}) >= 60
    assert sum(validator(json.dumps(row["schema"])) is None for row in SCHEMAS) <= 1
