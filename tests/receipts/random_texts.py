"""Random settings of texts, and receipts that somebody has changed."""

import copy
import json

from tests.byte_model import THINK
from tokenmill.receipts.receipt import hash_of

CONSTRAINTS = (
    {"regex": "[a-f]{2,5}x[0-9]*"},
    {"choice": ("Paris", "Parma", "Rome")},
    {"json_schema": {"type": "array", "items": {"enum": [True, False, 1]}, "maxItems": 3}},
    {"json_schema": {"type": "integer", "minimum": 5}},
    {"grammar": 'start: a "!" b\na[max_tokens=2]: /[a-d]*/\nb[max_tokens=2]: /[0-9]+/'},
    {"thinking_budget": 2},
    {"thinking_budget": 3, "regex": "[a-f]{2,5}"},
)
HASHED_ALONE = ("tokenmill", "model.name", "engine.")
"""Fields that say where a receipt was made. Only the hash guards them: no computing can tell whether they are right."""


def is_checkable(path):
    """Whether computing can tell if a field is right."""
    return not path.startswith(HASHED_ALONE) and path not in ("hash", "receipt", "engine", "model")


def random_prompt(random, vocabulary=256):
    tokens = [random.randrange(vocabulary) for _ in range(random.randint(1, 24))]
    return [*tokens, *THINK[: random.random() < 0.3 and vocabulary > max(THINK)]]


def random_settings(random, longest=40, constraints=CONSTRAINTS):
    """Settings of every kind, as keywords of `generate`."""
    found = {"max_new_tokens": random.randint(1, longest), "ignore_eos": random.random() < 0.5}
    if random.random() < 0.6:
        found |= {
            "temperature": random.choice((0.3, 0.9, 1.7)),
            "seed": random.randrange(2 ** random.choice((3, 32, 63))),
        }
        found |= random.choice(({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9}))
    if random.random() < 0.3:
        found |= random.choice(
            ({"repetition_penalty": 1.3}, {"presence_penalty": 0.7}, {"frequency_penalty": -0.4, "presence_penalty": 1})
        )
    if random.random() < 0.2:
        found["logit_bias"] = {random.randrange(256): random.choice((-float("inf"), 2.5, -3))}
    if random.random() < 0.2:
        found["stop"] = [random.choice(("a", "ab", "\n", "é", "x0"))]
        found["include_stop"] = random.random() < 0.5
    if random.random() < 0.2:
        found["stop_token_ids"] = [random.randrange(256)]
    if random.random() < 0.2:
        found["min_new_tokens"] = random.randint(0, found["max_new_tokens"])
    if random.random() < 0.1:
        found["bad_words"] = [random.choice("abc")]
    if random.random() < 0.1:
        found["allowed_token_ids"] = list(range(60, 130))
    if constraints and random.random() < 0.3:
        found |= random.choice(constraints)
        found.pop("allowed_token_ids", None)
    if random.random() < 0.2:
        found["n"] = 2
    return found


def changed(document, random, again, only=None):
    """A copy of a receipt's document with one random change, and the field that was changed. again: with the hash
    of what it says now. only: whether a field may be changed."""
    while True:
        found = copy.deepcopy(document)
        path = _change(found, random)
        if (only is None or only(path)) and json.dumps(found, sort_keys=True) != json.dumps(document, sort_keys=True):
            if again:
                found["hash"] = hash_of(found)
            return found, path


def _change(document, random):
    holder, path = document, ""
    while True:
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
        inner = holder[key]
        path = key if not path else f"{path}.{key}"
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.15:
            break
        holder = inner
    if isinstance(holder, list) and random.random() < 0.3:
        if random.random() < 0.5 or len(holder) < 2:
            holder.insert(key, random.choice(holder))
        else:
            del holder[key]
    elif isinstance(holder, dict) and random.random() < 0.15:
        del holder[key]
    else:
        holder[key] = _other(holder[key], random)
    return path


def _other(value, random):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, abs(value - 1), random.randrange(300), -value - 1))
    if isinstance(value, float):
        return random.choice((value + 0.1, value / 2, 1))
    if isinstance(value, str) and value:
        place = random.randrange(len(value))
        return value[:place] + random.choice("0123456789abcdefé") + value[place + 1 :]
    if isinstance(value, list) and value:
        place = random.randrange(len(value))
        return [*value[:place], *value[place + 1 :]]
    return random.choice((0, "a", None, [], {}))
