"""A receipt to try things on."""

import pytest

from tokenmill.receipts.receipt import Receipt
from tokenmill.settings.sampling_params import SamplingParams

ENGINE = {
    "program": "native",
    "dtype": "float32",
    "scheme": "dense",
    "cache_format": "dense",
    "kernel": "native",
    "fuse": "qkv,gate_up",
    "compile": ["auto", "decode", "inductor"],
    "threads": None,
    "long_rope": False,
    "device": "cpu",
    "build": "avx512 0123456789abcdef",
    "machine": "x86_64",
    "torch": "2.13.0",
}


@pytest.fixture
def receipt():
    return Receipt(
        tokenmill="0.1.0",
        model={"name": "words", "files": {"model.safetensors": "0" * 64}, "chat_template": None},
        engine=ENGINE,
        sampling=SamplingParams(max_new_tokens=3, temperature=1.0, seed=7, logit_bias={5: float("-inf")}, stop="é"),
        prompt=(1, 2),
        tokens=(3, 4, 5),
        text="w3 é",
        finish_reason="length",
        session={"answer_from": 1, "constrained_from": 2, "before": {"stop": ["x"]}},
    )
