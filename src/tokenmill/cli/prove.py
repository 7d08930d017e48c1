"""`tokenmill prove`: whether a server's texts depend on how they were computed, found out from outside."""

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.parser.options import JSON, QUIET, argument, option
from tokenmill.cli.process.display import echo, print_json, print_table, progress_on_stderr, remark
from tokenmill.errors import TokenmillError
from tokenmill.registry import PROOFS, help_of

if TYPE_CHECKING:  # imports httpx2, which is optional
    from tokenmill.prove.run import ProofOutcome

EXAMPLES = (
    "tokenmill prove http://127.0.0.1:8000",
    "tokenmill prove http://127.0.0.1:8000 --restart 'systemctl restart tokenmill'",
    "tokenmill prove https://llm.example.org --model qwen3 --logprobs --comparisons 10000 --requests 50000 --time 3600",
)

SERVER, CHECK = "Server", "Check"

RESTART = option(
    None,
    "Restarts the server, and returns when the old one has ended: texts before and after are compared.",
    SERVER,
    metavar="COMMAND",
)
CASE = option(
    None,
    "Only this case; may be repeated. "
    + "; ".join(f"{name}: {help_of(entry)}" for name, entry in PROOFS.items())
    + ".",
    CHECK,
)
SEED = option(
    None,
    "The same seed sends the same requests. Default: a new one each time, so that no prompt is in the server's cache.",
    CHECK,
)


def command(
    url: str = argument(..., "URL", "Where the server answers.", SERVER),
    model: str | None = option(None, "Name to ask for. Default: the first that the server lists.", SERVER),
    key: str | None = option(None, "Sent as bearer token.", SERVER, variable="OPENAI_API_KEY"),
    ca_file: Path | None = option(None, "Certificates, in PEM, that an https server may have.", SERVER, metavar="FILE"),
    restart: str | None = RESTART,
    case: list[str] | None = CASE,
    requests: int = option(2000, "Maximum number of requests.", CHECK),
    comparisons: int | None = option(None, "End when so many texts were compared.", CHECK),
    time: float = option(600.0, "Maximum duration in seconds.", CHECK),
    request_timeout: float = option(120.0, "Seconds after which a request counts as failed.", CHECK),
    concurrency: int = option(8, "How many requests make a crowd.", CHECK),
    max_tokens: int = option(32, "Maximum number of tokens of a text.", CHECK),
    seed: int | None = SEED,
    logprobs: bool = option(False, "Compare log-probabilities too.", CHECK),
    tolerance: float = option(0.0, "Difference of log-probabilities that is allowed.", CHECK),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Ask an OpenAI-compatible server the same requests under other circumstances, and say where its texts differ.

    Alone and in a crowd, cold and warm, streamed and whole, and so on; greedy and with seeds. Exit code 1 when
    something differed or failed, 130 after Ctrl-C. A case that compares nothing, because the server does not offer what
    it needs or a bound comes first, is named and is no pass: exit code 2. To leave it out, name the others by --case.
    """
    from tokenmill.prove.report import document
    from tokenmill.prove.run import prove
    from tokenmill.prove.settings import Settings

    settings = Settings(
        url=url,
        model=model,
        key=key or None,
        requests=requests,
        comparisons=comparisons,
        time_s=time,
        request_limit_s=request_timeout,
        concurrency=concurrency,
        max_tokens=max_tokens,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        logprobs=logprobs,
        tolerance=tolerance,
        cases=tuple(case or ()),
        restart=restart,
        ca_file=ca_file,
    )
    with progress_on_stderr(quiet) as progress:
        outcome = prove(settings, progress=progress)
    if json:
        print_json(document(outcome))
    else:
        _show(outcome, quiet)
    _leave(outcome)


def _show(outcome: "ProofOutcome", quiet: bool) -> None:
    from tokenmill.prove.report import HEADER, examples, notes, rows

    settings = outcome.settings
    title = (
        f"{settings.url}, {outcome.offer.model}: {outcome.num_comparisons:,} comparisons in {outcome.duration_s:.0f} s"
    )
    print_table(f"{title}, --seed {settings.seed}", rows(outcome), HEADER)
    for line in examples(outcome):
        echo(line)
    if not quiet:
        for note in notes(outcome):
            remark(f"note: {note}")


def _leave(outcome: "ProofOutcome") -> None:
    """Exit with the code of the outcome: what was found comes before what went wrong afterwards."""
    if outcome.interrupted:
        sys.exit(130)
    if outcome.num_differences or outcome.num_failed:
        sys.exit(1)
    if outcome.error is not None:
        raise outcome.error
    if nothing := outcome.compared_nothing:
        named = ", ".join(nothing) if len(nothing) < len(outcome.tallies) else "any case"
        raise TokenmillError(
            f"nothing was compared by {named} before the check was ended by {outcome.ended_by}: a larger bound, a "
            "server that offers more, or --case for the others, is needed"
        )
