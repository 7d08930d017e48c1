"""`tokenmill agent-check`: how much of an agent's requests a server computes though it had computed it before."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.parser.options import Json, Quiet, examples, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr, remark
from tokenmill.errors import TokenmillError
from tokenmill.prove.agent.log import read_log
from tokenmill.prove.agent.outcome import AgentOutcome
from tokenmill.prove.agent.report import HEADER, document, notes, percent, rows

EXAMPLES = examples(
    "tokenmill serve --record day.jsonl",
    "tokenmill agent-check day.jsonl",
    "tokenmill agent-check day.jsonl --url http://127.0.0.1:9000 --least 99.5 --json",
)

LOG, SERVER, CHECK = "Log", "Server", "Check"

Log = Annotated[
    Path,
    typer.Argument(metavar="LOG", help="Requests, a JSON object in a line: path, body.", rich_help_panel=LOG),
]
Url = Annotated[str, option(SERVER, "--url", metavar="URL", help="Where the server answers.")]
Name = Annotated[str | None, option(SERVER, "--model", help="Name to ask for. Default: that of each request.")]
Key = Annotated[str | None, option(SERVER, "--key", envvar="OPENAI_API_KEY", help="Sent as bearer token.")]
Timeout = Annotated[float, option(SERVER, "--timeout", min=1, help="Longest wait for an answer, in seconds.")]
MaxTokens = Annotated[int, option(CHECK, "--max-tokens", min=1, help="New tokens of each answer.")]
Least = Annotated[
    float,
    option(CHECK, "--least", min=0, max=100, help="Percent of what stood before that must be found; else exit code 1."),
]


def command(
    log: Log,
    url: Url = "http://127.0.0.1:8000",
    model: Name = None,
    key: Key = None,
    timeout: Timeout = 600.0,
    max_tokens: MaxTokens = 1,
    least: Least = 0.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Send an agent's recorded requests again, and say for each how many tokens were computed that had been before.

    Requests of /v1/chat/completions, /v1/responses, /v1/messages and /v1/completions are sent in their order, each with
    an answer of --max-tokens. Tokens stood before if an earlier request of the log began with them. A note says where
    a request parts from the one before it, which is what makes a server compute the rest again.
    """
    try:
        from tokenmill.prove.agent.check import AgentCheck, AgentSettings
    except ModuleNotFoundError as error:
        raise TokenmillError(f"agent-check needs {error.name}: pip install 'tokenmill[bench]'") from None

    recorded, num_done = read_log(log), 0
    settings = AgentSettings(url, key or None, model, max_tokens, timeout)
    with progress_on_stderr(quiet) as progress:
        progress.stage(f"asking {url}")

        def advance(_: object) -> None:
            nonlocal num_done
            num_done += 1
            progress.advance(num_done, len(recorded))

        outcome = AgentCheck(settings, advance).run(recorded)
    if json:
        print_json(document(outcome, url))
    else:
        _show(outcome, log, url, quiet)
    if any(turn.refusal for turn in outcome.turns) or (outcome.share is not None and 100 * outcome.share < least):
        raise typer.Exit(1)


def _show(outcome: AgentOutcome, log: Path, url: str, quiet: bool) -> None:
    print_table(f"{log} at {url}: tokens of each request", rows(outcome), HEADER, ("seconds", "new"))
    typer.echo(f"{percent(outcome.share)} of what stood before was found; {outcome.num_again:,} tokens computed again")
    if not quiet:
        for note in notes(outcome):
            remark(f"note: {note}")
