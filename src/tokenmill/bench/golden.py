"""Golden texts, which every correct engine gives: they are compared before anything is measured.

Greedy continuations as transformers computes them. Only prompts were taken whose first 32 tokens transformers gives
alike in float32 and in bfloat16, and where in float32 the likeliest token leads the next by 0.15 or more at every step.
`python benchmarks/golden_texts.py` makes them anew and compares.

In 16 bits a program may still turn such a lead: torch's products with AVX2 change it by up to 0.42 in bfloat16.
So another text counts as right there if every right token, after the right tokens before it, is within TIES of the
likeliest one.

Schemes with integer products round the activations to 8 bits, which may overturn such a lead. Each token is then
predicted from the right tokens before it, and the share `min_agreement` of the scheme must be right.
"""

from collections.abc import Mapping
from pathlib import Path

from tokenmill.engine.engine import Engine
from tokenmill.errors import WrongText
from tokenmill.hub.short_names import SHORT_NAMES
from tokenmill.quant.schemes import find_scheme

NEW_TOKENS = 32
TIES = {"bfloat16": 0.5, "float16": 0.0625}  # of logits: the distance of neighbouring numbers at 64
GOLDEN: dict[str, dict[str, str]] = {
    "smollm2-135m": {
        "1, 2, 3, 4, 5,": (
            "216 38 28 216 39 28 216 40 28 216 41 28 216 33 32 28 216 33 33 28 216 33 34 28 216 33 35 28 216 33 36 28"
        ),
        "2, 4, 6, 8, 10,": (
            "216 33 34 28 216 33 36 28 216 33 38 28 216 33 40 28 216 34 32 28 216 34 34 28 216 34 36 28 216 34 38 28"
        ),
        "10, 9, 8, 7,": (
            "216 38 28 216 37 28 216 36 28 216 35 28 216 34 28 216 33 28 216 32 28 216 33 28 216 34 28 216 35 28 216 36"
        ),
        "class Stack:\n    def __init__(self):\n": (
            "19 256 33 30 216 33 30 216 33 30 216 33 30 216 33 30 216 33 30 216 33 30 216 33 30 216 33 30 216 33 30 216"
        ),
        "The mitochondria is the": (
            "1439 29 22171 1192 15436 983 281 40784 1960 30 13657 12964 5484 359 3358 327 6216 23961 365 344 "
            "27432 462 3149 40675 643 527 314 260 1439 9850 282 260"
        ),
        "SELECT * FROM": (
            "476 51 3206 51 79 51 3206 51 79 51 3206 51 79 51 3206 51 79 51 3206 51 79 51 3206 51 79 51 3206 51 "
            "79 51 3206 51"
        ),
        "To make bread you need": (
            "288 919 357 30 198 198 504 2988 314 42 216 33 30 198 198 504 2988 314 42 216 34 30 2 198 1 520 9531 "
            "198 504 2988 314 216"
        ),
        "The Pythagorean theorem states that": (
            "327 253 1048 14973 351 15328 2103 15900 28 260 5222 282 260 3519 282 260 16392 264 1726 314 4037 288 "
            "260 2028 282 260 16207 282 260 550 827 5882"
        ),
    },
    "gemma3-270m": {
        "1, 2, 3, 4, 5,": (
            "236743 236825 236764 236743 236832 236764 236743 236828 236764 236743 236819 236764 236743 236770 "
            "236771 236764 236743 236770 236770 236764 236743 236770 236778 236764 236743 236770 236800 236764 "
            "236743 236770 236812 236764"
        ),
        "The mitochondria is the": (
            "89096 529 506 2145 236761 1030 563 506 3432 529 2778 3719 532 6310 236761 1030 563 506 3432 529 "
            "20290 53450 236761 1030 563 506 3432 529 6762 18844 236761 1030"
        ),
        "SELECT * FROM": (
            "568 12874 808 10912 568 12874 808 10912 568 12874 808 10912 568 12874 808 10912 568 12874 808 10912 "
            "568 12874 808 10912 568 12874 808 10912 568 12874 808 10912"
        ),
        "def fibonacci(n):\n": (
            "140 584 538 1251 236743 236771 236787 107 144 2060 236743 236771 107 140 36208 538 1251 236743 "
            "236770 236787 107 144 2060 236743 236770 107 140 36208 538 1251 236743 236778"
        ),
        "The quick brown fox": (
            "38167 1024 506 31770 4799 236761 108 818 31770 4799 563 496 4799 600 563 31770 236761 108 818 31770 "
            "4799 563 496 4799 600 563 31770 236761 108 818 31770 4799"
        ),
        "Water boils at": (
            "236743 236770 236771 236771 10674 57356 236761 108 17390 104264 657 236743 236770 236771 236771 "
            "10674 57356 236761 108 17390 104264 657 236743 236770 236771 236771 10674 57356 236761 108 17390 "
            "104264"
        ),
        "The human heart has": (
            "496 2803 1977 528 506 17500 529 1551 1331 236761 1030 563 496 12763 2030 600 563 7757 573 42672 4806 "
            "5459 506 2742 236761 1030 563 496 3996 2030 600 563"
        ),
        "The opposite of hot is": (
            "7445 236761 108 818 11688 529 7445 563 3425 236761 108 818 11688 529 3425 563 7445 236761 108 818 "
            "11688 529 7445 563 3425 236761 108 818 11688 529 7445 563"
        ),
    },
}


def token_ids(text: str) -> list[int]:
    """Parse the ids of one entry of GOLDEN."""
    return [int(word) for word in text.split()]


def reference_for(path: Path) -> Mapping[str, str] | None:
    """Find the golden texts, prompt → token ids, for a file that a short name stands for; None for any other model."""
    for name, packaged in SHORT_NAMES.items():
        if path.name == packaged.file_name and path.stat().st_size == packaged.num_bytes:
            return GOLDEN.get(name)
    return None


def check_text(engine: Engine, reference: Mapping[str, str]) -> str:
    """Compare texts with the reference and say in a few words what is right. Raises WrongText for a difference."""
    if find_scheme(engine.config.scheme).min_agreement < 1:
        return _check_tokens(engine, reference)
    wrong, turned = [], 0
    for prompt, text in reference.items():
        done = engine.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        if list(done.tokens) == token_ids(text):
            continue
        if _is_tie(engine, prompt, token_ids(text)):
            turned += 1
        else:
            wrong.append(f"{prompt!r} goes on with {done.text[:40]!r} …")
    if wrong:
        raise WrongText(
            f"{len(wrong)} of {len(reference)} texts differ from transformers' texts: {'; '.join(wrong)}: "
            "figures of a wrong computation are not reported"
        )
    ties = f", {turned} of them until a tie of {engine.config.dtype}" if turned else ""
    return f"{len(reference)} texts as transformers'{ties}"


def _is_tie(engine: Engine, prompt: str, expected: list[int]) -> bool:
    """Tell whether every right token is as likely as the likeliest one, within the rounding of 16 bits."""
    if engine.config.dtype not in TIES:
        return False
    ids = engine.encode(prompt)
    logits_TV = engine.logits([*ids, *expected[:-1]])[len(ids) - 1 :]
    right_T = logits_TV[list(range(len(expected))), expected]
    return bool((logits_TV.max(-1).values - right_T <= TIES[engine.config.dtype]).all())


def _check_tokens(engine: Engine, reference: Mapping[str, str]) -> str:
    right = total = 0
    for prompt, text in reference.items():
        ids, expected = engine.encode(prompt), token_ids(text)
        found = engine.logits([*ids, *expected[:-1]])[len(ids) - 1 :].argmax(-1).tolist()
        right += sum(a == b for a, b in zip(found, expected, strict=True))
        total += len(expected)
    share = f"{right} of {total} tokens as transformers' (scheme {engine.config.scheme} rounds activations)"
    if right < find_scheme(engine.config.scheme).min_agreement * total:
        raise WrongText(f"{share}: figures of a wrong computation are not reported")
    return share
