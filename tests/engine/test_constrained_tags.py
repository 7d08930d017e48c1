"""Texts of a structural tag are the same with and without speculation, alone and in a batch, and fit it."""

import re

import pytest

from tests.byte_model import save_byte_model
from tests.empty import check_empty
from tokenmill import SamplingParams, load

FORMAT = {
    "type": "sequence",
    "elements": [
        {"type": "tag", "begin": "<t>", "content": {"type": "any_text", "max_chars": 9}, "end": ["</t>", "!"]},
        {
            "type": "tags_with_separator",
            "tags": [
                {
                    "begin": "<f=a>",
                    "content": {"type": "json_schema", "json_schema": {"enum": [[], {}]}},
                    "end": "</f>",
                },
                {"begin": "<f=b>", "content": {"type": "regex", "pattern": r"\d{2,4}"}, "end": "</f>"},
            ],
            "separator": "\n",
            "at_least_one": True,
        },
    ],
}
FITS = re.compile(
    r"<t>.{0,9}?(</t>|!)<f=(a>(\[\]|{})|b>[0-9]{2,4})</f>(\n<f=(a>(\[\]|{})|b>[0-9]{2,4})</f>)*", re.DOTALL
)
SETTINGS = ({}, {"temperature": 1.0, "seed": 3, "top_k": 40}, {"temperature": 1.3, "seed": 4})
PROMPTS = ["hello", "Once upon a time", "abcabcabc"]


@pytest.mark.parametrize("speculate", [pytest.param("adaptive", marks=pytest.mark.slow), "multi_step"])
def test_the_text_is_the_same_with_drafts(speculate, tmp_path):
    path = str(save_byte_model(tmp_path))
    how = {"dtype": "float32", "threads": 1, "max_length": 256, "program": "native"}
    plain = load(path, **how, speculate="off", max_sequences=1, prefix_cache=False)
    core = load(path, **how, speculate=speculate, max_sequences=4, max_step_tokens=17, block_size=8).core
    given = [SamplingParams(max_new_tokens=64, structural_tag={"format": FORMAT}, **each) for each in SETTINGS]
    alone = [plain.core.finish([plain.core.request(plain.encode(text), each)])[0] for text in PROMPTS for each in given]
    done = core.finish([core.request(plain.encode(text), each) for text in PROMPTS for each in given])
    assert [each.tokens for each in done] == [each.tokens for each in alone]
    whole = [each.text for each in done if each.finish_reason == "eos"]
    assert len(whole) > 3 and all(FITS.fullmatch(text) for text in whole)
    check_empty(core)
