"""`tokenmill prove`: whether a server's texts depend on how they were computed, found out from outside."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenmill.cli.parser.options import Json, Quiet, examples, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr, remark
from tokenmill.errors import TokenmillError
from tokenmill.registry import PROOFS, help_of

if TYPE_CHECKING:  # imports httpx2, which is optional
    from tokenmill.prove.run import ProofOutcome

EXAMPLES = examples(
    "tokenmill prove http://127.0.0.1:8000",
    "tokenmill prove http://127.0.0.1:8000 --restart 'systemctl restart tokenmill'",
    "tokenmill prove https://llm.example.org --model qwen3 --logprobs --comparisons 10000 --requests 50000 --time 3600",
)

SERVER, CHECK = "Server", "Check"

Url = Annotated[str, typer.Argument(metavar="URL", help="Where the server answers.", rich_help_panel=SERVER)]
Name = Annotated[
    str | None, option(SERVER, "--model", help="Name to ask for. Default: the first that the server lists.")
]
Key = Annotated[str | None, option(SERVER, "--key", envvar="OPENAI_API_KEY", help="Sent as bearer token.")]
CaFile = Annotated[
    Path | None,
    option(SERVER, "--ca-file", metavar="FILE", help="Certificates, in PEM, that an https server may have."),
]
Restart = Annotated[
    str | None,
    option(
        SERVER,
        "--restart",
        metavar="COMMAND",
        help="Restarts the server, and returns when the old one has ended: texts before and after are compared.",
    ),
]
Case = Annotated[
    list[str] | None,
    option(
        CHECK,
        "--case",
        help="Only this case; may be repeated. "
        + "; ".join(f"{name}: {help_of(entry)}" for name, entry in PROOFS.items())
        + ".",
    ),
]
Requests = Annotated[int, option(CHECK, "--requests", help="Maximum number of requests.")]
Comparisons = Annotated[int | None, option(CHECK, "--comparisons", help="End when so many texts were compared.")]
Time = Annotated[float, option(CHECK, "--time", help="Maximum duration in seconds.")]
RequestTimeout = Annotated[
    float, option(CHECK, "--request-timeout", help="Seconds after which a request counts as failed.")
]
Concurrency = Annotated[int, option(CHECK, "--concurrency", help="How many requests make a crowd.")]
MaxTokens = Annotated[int, option(CHECK, "--max-tokens", help="Maximum number of tokens of a text.")]
Seed = Annotated[
    int | None,
    option(
        CHECK,
        "--seed",
        help="The same seed sends the same requests. Default: a new one each time, so that no prompt "
        "is in the server's cache.",
    ),
]
Logprobs = Annotated[bool, option(CHECK, "--logprobs", help="Compare log-probabilities too.")]
Tolerance = Annotated[float, option(CHECK, "--tolerance", help="Difference of log-probabilities that is allowed.")]


def command(
    url: Url,
    model: Name = None,
    key: Key = None,
    ca_file: CaFile = None,
    restart: Restart = None,
    case: Case = None,
    requests: Requests = 2000,
    comparisons: Comparisons = None,
    time: Time = 600.0,
    request_timeout: RequestTimeout = 120.0,
    concurrency: Concurrency = 8,
    max_tokens: MaxTokens = 32,
    seed: Seed = None,
    logprobs: Logprobs = False,
    tolerance: Tolerance = 0.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask an OpenAI-compatible server the same requests under other circumstances, and say where its texts differ.

    Alone and in a crowd, cold and warm, streamed and whole, and so on; greedy and with seeds. Exit code 1 when
    something differed or failed, 130 after Ctrl-C. A case that compares nothing, because the server does not offer what
    it needs or a bound comes first, is named and is no pass: exit code 2. To leave it out, name the others by --case.
    """
    try:
        from tokenmill.prove.run import prove
    except ModuleNotFoundError as error:
        raise TokenmillError(f"prove needs {error.name}: pip install 'tokenmill[bench]'") from None
    from tokenmill.prove.report import document
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
        typer.echo(line)
    if not quiet:
        for note in notes(outcome):
            remark(f"note: {note}")


def _leave(outcome: "ProofOutcome") -> None:
    """The exit code: what was found comes before what went wrong afterwards."""
    if outcome.interrupted:
        raise typer.Exit(130)
    if outcome.num_differences or outcome.num_failed:
        raise typer.Exit(1)
    if outcome.error is not None:
        raise outcome.error
    if nothing := outcome.compared_nothing:
        named = ", ".join(nothing) if len(nothing) < len(outcome.tallies) else "any case"
        raise TokenmillError(
            f"nothing was compared by {named} before the check was ended by {outcome.ended_by}: a larger bound, a "
            "server that offers more, or --case for the others, is needed"
        )
