"""Inputs of rows for a tiny model that speaks in words, and an engine to answer them."""

import json

import pytest

from tests.word_model import save_chat_model
from tokenmill import load
from tokenmill.batches.batch import How, opened
from tokenmill.batches.output import Shard
from tokenmill.batches.template import TableTask, Template
from tokenmill.serve.sessions.batch_lines import BatchLines
from tokenmill.settings.sampling_params import SamplingParams

SETTINGS = {"dtype": "float32", "max_length": 96, "max_sequences": 4, "block_size": 8}
NAME = "words"


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="session")
def engine(chat_model):
    return load(chat_model, **SETTINGS)


def requests(count):
    """Lines of both routes: greedy and at random, with seeds and without, several continuations, log-probabilities."""
    for number in range(count):
        more = {"max_tokens": 3 + number % 5, "temperature": 0.8 * (number % 3 > 0)}
        more |= {"seed": number} if number % 4 == 0 else {}
        more |= {"n": 3} if number % 5 == 0 else {}
        more |= {"stop": ["w7", "w9"]} if number % 6 == 0 else {}
        text = f"w{number % 7} w{number % 3} w{number}"
        if number % 2:
            url, body = "/v1/completions", {"prompt": text, **more}
            body |= {"logprobs": 2} if number % 3 == 0 else {}
            body |= {"prompt_logprobs": 1} if number % 9 == 0 else {}
            body |= {"best_of": 4, "n": 2} if number % 11 == 0 else {}
        else:
            url, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more}
            body |= {"logprobs": True, "top_logprobs": 1} if number % 3 == 0 else {}
        yield {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}


def write_lines(path, lines):
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
    return path


def lines_task(**more):
    return BatchLines(NAME, **more)


def table_task(prompt="{text} w5", **settings):
    params = SamplingParams(**({"max_new_tokens": 4, "temperature": 0.8} | settings))
    return TableTask(lambda _: params, Template(prompt))


def run(engine, source, target, task, shard=Shard(), **how):  # noqa: B008
    """Run a batch; its summary."""
    with opened(source, target, task, shard) as batch:
        return batch.run(engine.core, How(**how))
