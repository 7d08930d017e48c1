"""`tokenmill agent-check`: how much of an agent's requests a server computes though it had computed it before."""

import sys
from pathlib import Path

from tokenmill.cli.parser.options import JSON, QUIET, argument, option
from tokenmill.cli.process.display import echo, print_json, print_table, progress_on_stderr, remark
from tokenmill.prove.agent.log import read_log
from tokenmill.prove.agent.outcome import AgentOutcome
from tokenmill.prove.agent.report import HEADER, document, notes, percent, rows

EXAMPLES = (
    "tokenmill serve --record day.jsonl",
    "tokenmill agent-check day.jsonl",
    "tokenmill agent-check day.jsonl --url http://127.0.0.1:9000 --least 99.5 --json",
)

LOG, SERVER, CHECK = "Log", "Server", "Check"


def command(
    log: Path = argument(..., "LOG", "Requests, a JSON object in a line: path, body.", LOG),
    url: str = option("http://127.0.0.1:8000", "Where the server answers.", SERVER, metavar="URL"),
    model: str | None = option(None, "Name to ask for. Default: the name in each request.", SERVER),
    key: str | None = option(None, "Sent as bearer token.", SERVER, variable="OPENAI_API_KEY"),
    timeout: float = option(600.0, "Longest wait for an answer, in seconds.", SERVER, minimum=1),
    max_tokens: int = option(1, "New tokens of each answer.", CHECK, minimum=1),
    least: float = option(
        0.0, "Percent of what stood before that must be found; else exit code 1.", CHECK, minimum=0, maximum=100
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Send an agent's recorded requests again, and say for each how many tokens were computed a second time.

    Requests of /v1/chat/completions, /v1/responses, /v1/messages and /v1/completions are sent in their order, each with
    an answer of --max-tokens. Tokens stood before if an earlier request of the log began with them. A note says where
    a request parts from the one before it, which is what makes a server compute the rest again.
    """
    from tokenmill.prove.agent.check import AgentCheck, AgentSettings

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
        sys.exit(1)


def _show(outcome: AgentOutcome, log: Path, url: str, quiet: bool) -> None:
    print_table(f"{log} at {url}: tokens of each request", rows(outcome), HEADER, ("seconds", "new"))
    echo(f"{percent(outcome.share)} of what stood before was found; {outcome.num_again:,} tokens computed again")
    if not quiet:
        for note in notes(outcome):
            remark(f"note: {note}")
