"""What tests ask of a program: texts beside other features, sessions, texts found in the cache, and stored states."""

import torch

from tests.tiny_models import prompt
from tokenmill import load
from tokenmill.cache.step import Span, Step
from tokenmill.settings.sampling_params import SamplingParams

PROMPTS = [prompt(length, seed=6) for length in (1, 9, 20)]
CPU = torch.device("cpu")

MEETS = {
    "preempted": {"cache_tokens": 40, "block_size": 4, "prefix_cache": False},
    "async": {"async_scheduling": "on", "block_size": 8},
    "drafts": {"speculate": "suffix", "block_size": 8},
    "chunks of 5": {"max_step_tokens": 5, "block_size": 8},
}


def texts(engine, prompts=PROMPTS, **how):
    done = engine.generate(prompts, **{"max_new_tokens": 3, "ignore_eos": True} | how)
    return [each.tokens for each in done]


def said(engine, tokens, count):
    """The text, and how many tokens of the prompt were found in the cache."""
    request = engine.core.request(tokens, SamplingParams(max_new_tokens=count, ignore_eos=True))
    (done,) = engine.core.finish([request])
    return list(done.tokens), request.sequences[0].num_cached_tokens


def told_in_sessions(engine, path):
    """The texts of a session, of its fork, after a rewind, and after it was saved and opened."""
    session = engine.session(prompt(9, seed=6))
    first = session.generate(max_new_tokens=3, ignore_eos=True).tokens
    fork = session.fork()
    session.rewind(len(session.tokens) - 2)
    both = [each.generate(max_new_tokens=2, ignore_eos=True).tokens for each in (session, fork)]
    session.save(path)
    return [first, *both, engine.open_session(path).generate(max_new_tokens=2, ignore_eos=True).tokens]


class Text:
    """One text in an engine's cache, a step after the other."""

    def __init__(self, path, **settings):
        shared = {"dtype": "float32", "max_length": 32, "block_size": 32, "max_sequences": 8, "threads": 1}
        self.engine = load(path, **shared, **settings)
        self.loaded = self.engine.core.loaded

    def run(self, tokens, start, state, saves):
        """The output of a step with these tokens; tokens of -1 are found."""
        count = len(tokens)
        positions = range(start, start + count)
        span = Span(0, count, start, 0, None, count, [0], state, tuple(saves))
        step = Step(tokens, positions, positions, [span], None, count, CPU, has_unknown=-1 in tokens)
        return self.loaded.program.run(step)

    def states(self, slot):
        return [tensor for tensor in self.loaded.pool.read(torch.tensor([slot]), kind=1).values() if tensor.numel()]

    def spoil(self):
        for layer in self.loaded.pool.layers:
            for tensor, kind in zip(layer.tensors, layer.kinds, strict=True):
                if kind.startswith("state"):
                    tensor.fill_(torch.nan)
