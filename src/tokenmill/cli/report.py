"""The figures after a text: one line for people, one JSON document for programs."""

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenmill.cli.parser.options import option_name
from tokenmill.cli.process.display import table_text
from tokenmill.measure.memory import peak_bytes
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import counted
from tokenmill.version import __version__

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion


def cut_by(done: "Completion", params: SamplingParams, config: EngineConfig) -> str:
    """Name the limit that ended a text, as `stopped at -n 128`; empty if it ended by itself or at a stop text."""
    if done.finish_reason != "length":
        return ""
    if len(done.tokens) != params.max_new_tokens:
        for name in ("max_length", "cache_tokens"):
            limit = getattr(config, name)
            if limit is not None and done.num_prompt_tokens + len(done.tokens) >= limit:
                return f"stopped at {option_name(name)} {limit}"
    return f"stopped at -n {len(done.tokens)}"


def summary(engine: "Engine", completions: Sequence["Completion"], elapsed_s: float, params: SamplingParams) -> str:
    """Say tokens, time to first token, tokens per second, how, the hash, and the limit that ended the text."""
    config, new = engine.config, sum(len(done.tokens) for done in completions)
    prompt = sum(done.num_prompt_tokens for done in completions)
    first, timing, stats = completions[0], completions[0].timing, engine.core.speculation.stats
    rate = timing.tokens_per_s if len(completions) == 1 else new / elapsed_s
    where = counted(config.threads, "thread") if config.device == "cpu" else config.device
    where = f"{config.tensor_parallel} ranks with {where}" if config.tensor_parallel > 1 else where
    return " · ".join(
        [
            *([f"{len(completions)} texts"] if len(completions) > 1 else []),
            f"{prompt} prompt + {counted(new, 'new token')}",
            f"first token {timing.ttft_s:.2f} s",
            *([f"{rate:.1f} tokens/s"] if rate else []),  # one token has none
            f"{config.dtype} {engine.program_name}, scheme {config.scheme}, {where}",
            *([f"{stats.num_accepted} of {counted(stats.num_drafted, 'draft')} accepted"] if stats.num_drafted else []),
            *([first.hash] if len(completions) == 1 else []),
            *_limits([cut_by(done, params, config) for done in completions]),
        ]
    )


def _limits(reasons: Sequence[str]) -> list[str]:
    """List each limit that ended a text, with the number of texts if there are several."""
    counts = Counter(reason for reason in reasons if reason)
    return [f"{count} {reason}" if len(reasons) > 1 else reason for reason, count in counts.items()]


def document(engine: "Engine", completion: "Completion", params: SamplingParams) -> dict[str, Any]:
    """Gather what one completion, and a reader who wants to repeat it, needs. Speculation: of all completions."""
    timing = completion.timing
    logprobs = completion.logprobs
    return {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "num_prompt_tokens": completion.num_prompt_tokens,
        "finish_reason": completion.finish_reason,
        "hash": completion.hash,
        "seed": completion.seed,
        "logprobs": None if logprobs is None else [asdict(entry) for entry in logprobs],
        "timing": {
            "ttft_s": timing.ttft_s,
            "itl_s": list(timing.itl_s),
            "total_s": timing.total_s,
            "tokens_per_s": timing.tokens_per_s,
        },
        "speculation": engine.core.speculation.stats.columns,
        "program": program_facts(engine),
        "settings": {**asdict(engine.config), **asdict(params)},
        "memory": {**engine.memory, "peak_bytes": peak_bytes()},
        "versions": versions(),
    }


def program_facts(engine: "Engine") -> dict[str, Any]:
    """Name the program that runs, the reason for it, and why nothing faster runs."""
    return {
        "name": engine.program_name,
        "reason": engine.program_reason,
        "refusals": dict(engine.program_refusals),
        "kernel": engine.kernel_name,
    }


def versions() -> dict[str, str]:
    """Name the versions of everything that the figures depend on."""
    import torch

    return {
        "tokenmill": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.platform(),
    }


def logprobs_table(engine: "Engine", completion: "Completion") -> str:
    """Write a line for each new token: its log-probability, and the likeliest tokens in its place with theirs."""
    from tokenmill.text.token_bytes import token_bytes

    def shown(token: int) -> str:
        tokenizer = engine.tokenizer
        return str(token) if tokenizer is None else repr(token_bytes(tokenizer, token).decode(errors="replace"))

    rows = [
        (shown(token), f"{entry.logprob:.3f}", "  ".join(f"{shown(other)} {value:.3f}" for other, value in entry.top))
        for token, entry in zip(completion.tokens, completion.logprobs or (), strict=True)
    ]
    has_top = any(row[2] for row in rows)
    header = ("token", "logprob", "likeliest")
    return table_text("", rows if has_top else [row[:2] for row in rows], header, justify="left").rstrip("\n")
