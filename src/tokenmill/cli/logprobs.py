"""The table of `--logprobs`."""

from typing import TYPE_CHECKING

from tokenmill.cli.process.display import table_text

if TYPE_CHECKING:  # these import torch
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.outputs import Completion


def logprobs_table(engine: "Engine", completion: "Completion") -> str:
    """A line for each new token: its log-probability, and the likeliest tokens in its place with theirs."""

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
