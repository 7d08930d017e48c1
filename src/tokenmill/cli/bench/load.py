"""`tokenmill bench load`: load on a server that speaks OpenAI's protocol."""

import json as json_format
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.bench.points import parse_counts
from tokenmill.cli.parser.options import JSON, OUTPUT, PROMPT, QUIET, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr, remark
from tokenmill.errors import ConfigError

if TYPE_CHECKING:  # imports httpx2, which is optional
    from tokenmill.bench.load import LoadRequest, LoadTest

EXAMPLES = (
    "tokenmill bench load --concurrency 8",
    "tokenmill bench load --concurrency 1,2,4,8,16 --output load.jsonl",
    "tokenmill bench load --rate 4 --num-prompts 200 --goodput ttft:500 --goodput tpot:50",
    "tokenmill bench load --url http://10.0.0.5:8000 --chat --rate inf --concurrency 32 --output load.jsonl",
)

SERVER, ARRIVAL = "Server", "Arrival"

BURSTINESS = option(
    1.0,
    "How evenly requests come: 1 is Poisson, below 1 in bursts, inf evenly (shape of a gamma distribution).",
    ARRIVAL,
)
CONCURRENCY = option(
    None,
    "Maximum number of requests in flight; the others wait. Each of several is a run of its own.",
    ARRIVAL,
    metavar="N,…",
)
PROMPTS = option(
    None,
    'Prompts from a file, one per line: text, or JSON as {"prompt": "…", "max_tokens": 9}; '
    "repeated when there are too few.",
    PROMPT,
)
GOODPUT = option(
    None,
    "Also count the requests within this limit in ms on ttft, tpot or e2el. May be repeated.",
    OUTPUT,
    metavar="METRIC:MS",
)


def command(
    url: str = option("http://127.0.0.1:8000", "Where the server answers.", SERVER),
    model: str | None = option(None, "Name to ask for. Default: the first that the server lists.", SERVER),
    api_key: str | None = option(None, "Sent as bearer token.", SERVER, variable="OPENAI_API_KEY"),
    chat: bool = option(False, "Ask /v1/chat/completions, not /v1/completions.", SERVER),
    time_limit: float = option(600.0, "Seconds after which a request counts as failed.", SERVER),
    rate: float = option(math.inf, "Requests per second; inf sends all at once.", ARRIVAL),
    burstiness: float = BURSTINESS,
    concurrency: str | None = CONCURRENCY,
    num_prompts: int = option(100, "Requests to send.", ARRIVAL),
    prompt: int = option(128, "Tokens of each prompt (made of short words, or of ids with --vocab-size).", PROMPT),
    new: int = option(64, "Maximum number of tokens of an answer.", PROMPT),
    seed: int = option(0, "The same seed gives the same prompts and times.", PROMPT),
    vocab_size: int | None = option(None, "Send random token ids below this, not words.", PROMPT),
    prompts: Path | None = PROMPTS,
    ignore_eos: bool = option(True, "Ask for answers of full length, past the model's end.", PROMPT),
    goodput: list[str] | None = GOODPUT,
    detailed: bool = option(False, "Every request's figures and text, in JSON.", OUTPUT),
    label: str | None = option(None, "Name of the run in results and pictures.", OUTPUT),
    output: Path | None = option(None, "Append the JSON document to this file.", OUTPUT, "-o", metavar="FILE"),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Send streaming requests to an OpenAI-compatible server, and say how fast and how evenly it answers.

    With --rate requests come when they are due (open loop), with --concurrency when another ends (closed loop). Figures
    have the names and meanings of vLLM's bench serve. Exit code 1 when no request succeeded, 130 after Ctrl-C.
    """
    from tokenmill.bench.load import LoadTest

    counts = [None] if concurrency is None else parse_counts(concurrency, "--concurrency")
    load = LoadTest(
        url=url,
        model=model,
        api_key=api_key or None,
        chat=chat,
        time_limit=time_limit,
        rate=rate,
        burstiness=burstiness,
        num_prompts=num_prompts,
        prompt=prompt,
        new=new,
        seed=seed,
        vocab_size=vocab_size,
        prompts=prompts,
        ignore_eos=ignore_eos,
        goodput=dict(_parse_bound(text) for text in goodput or []),
    )
    if detailed and not (json or output):
        raise ConfigError("--detailed", True, "only together with --json or --output, which can show it")
    runs: list[dict[str, Any]] = []
    for number, count in enumerate(counts):
        # Each run has its own prompts: the server's prefix cache holds the prompts of the run before.
        facts = _run(replace(load, concurrency=count, seed=seed + number), label, detailed, output, quiet)
        _report(facts, output, json, quiet)
        runs.append(facts)
        if facts["interrupted"] or not facts["completed"]:
            sys.exit(130 if facts["interrupted"] else 1)
    if len(runs) > 1 and not json:
        _compare(runs)


def _run(load: "LoadTest", label: str | None, detailed: bool, output: Path | None, quiet: bool) -> dict[str, Any]:
    """Run one load test. Everything that may be refused is refused before the first request."""
    from tokenmill.bench.load import build_asks, find_model, send
    from tokenmill.bench.load_report import figures
    from tokenmill.measure.files import check_appendable

    asks = build_asks(load)
    if output:
        check_appendable(output, "--output")
    model = find_model(load)
    with progress_on_stderr(quiet) as progress:
        progress.stage(f"{len(asks)} requests to {load.url}")
        outcome = send(load, model, asks, progress)
    open_loop = math.isfinite(load.rate) or load.concurrency is None
    facts = figures(outcome, load.goodput, open_loop, detailed)
    return _head(load, model, label) | facts | {"notes": [*facts["notes"], *_repeats(asks)]}


def _report(facts: dict[str, Any], output: Path | None, json: bool, quiet: bool) -> None:
    is_lost = output is not None and not _saved(facts, output)
    if json or is_lost:
        print_json(facts)
    else:
        _show(facts)
    if not quiet:
        for note in facts["notes"]:
            remark(f"note: {note}")
    if is_lost:
        sys.exit(2)


def _saved(facts: dict[str, Any], output: Path) -> bool:
    try:
        with output.open("a", encoding="utf-8") as file:
            file.write(json_format.dumps(facts) + "\n")
    except OSError as error:
        remark(f"error: {output} cannot be written ({error.strerror}): the document is on stdout")
        return False
    return True


def _head(load: "LoadTest", model: str, label: str | None) -> dict[str, Any]:
    """Describe the settings of the run, under vLLM's keys where vLLM has one."""
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat" if load.chat else "openai",
        "endpoint_type": "openai-chat" if load.chat else "openai",
        "label": label,
        "base_url": load.url,
        "model_id": model,
        "tokenizer_id": None,
        "num_prompts": load.num_prompts,
        # JSON has no infinity.
        "request_rate": load.rate if math.isfinite(load.rate) else "inf",
        "burstiness": load.burstiness if math.isfinite(load.burstiness) else "inf",
        "max_concurrency": load.concurrency,
        "seed": load.seed,
        "prompt": load.prompt if load.prompts is None else str(load.prompts),
        "new": load.new,
        "goodput": dict(load.goodput),
    }


def _repeats(asks: "Sequence[LoadRequest]") -> list[str]:
    # Repeated ones are the same object.
    distinct = len({id(ask) for ask in asks})
    return [] if distinct == len(asks) else [f"{distinct} prompts were repeated; a prefix cache answers those faster"]


def _parse_bound(text: str) -> tuple[str, float]:
    metric, _, bound_ms = text.partition(":")
    try:
        return metric, float(bound_ms)
    except ValueError:
        raise ConfigError("--goodput", text, "METRIC:MILLISECONDS, as ttft:500") from None


def _show(facts: dict[str, Any]) -> None:
    counted = {"usage": "", None: "", "chunks": " (chunks counted)", "both": " (some are chunks)"}
    rows = [
        ("completed", f"{facts['completed']:,}"),
        ("failed", f"{facts['failed']:,}"),
        ("unfinished", f"{facts['unfinished']:,}"),
        ("max in flight", f"{facts['max_concurrent_requests']:,}"),
        ("duration", f"{facts['duration']:.2f} s"),
        ("input tokens", f"{facts['total_input_tokens']:,}"),
        ("output tokens" + counted[facts["token_counts_from"]], f"{facts['total_output_tokens']:,}"),
        ("requests/s", f"{facts['request_throughput']:.2f}"),
        ("within --goodput/s", f"{facts['request_goodput'] or 0:.2f}"),
        ("output tokens/s", f"{facts['output_throughput']:.1f}"),
        ("all tokens/s", f"{facts['total_token_throughput']:.1f}"),
    ]
    left_out = {"unfinished": facts["interrupted"], "within --goodput/s": facts["goodput"]}
    arrival = f"rate {facts['request_rate']}"
    if facts["max_concurrency"]:
        arrival += f", at most {facts['max_concurrency']} at a time"
    title = f"{facts['num_prompts']} requests to {facts['model_id']} at {facts['base_url']}, {arrival}"
    print_table(title, [row for row in rows if left_out.get(row[0], True)])
    _show_latencies(facts)
    if facts["error_counts"]:
        examples_of = facts["error_examples"]
        failures = [(reason, str(count), examples_of[reason]) for reason, count in facts["error_counts"].items()]
        print_table("\nFailures", failures, ("reason", "requests", "the first of them"))


def _compare(runs: Sequence[dict[str, Any]]) -> None:
    names = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_e2el_ms")
    words = ("at a time", "tokens/s", "ttft p50", "ttft p99", "tpot p50", "tpot p99", "e2el p99")
    shown = [
        (str(run["max_concurrency"]), *("" if (value := run[name]) is None else f"{value:.1f}" for name in names))
        for run in runs
    ]
    print_table("\nBy requests in flight; milliseconds", shown, words)


def _show_latencies(facts: dict[str, Any]) -> None:
    from tokenmill.bench.load_report import LATENCIES

    statistics = ("mean", "median", "std", "p90", "p95", "p99")
    rows = []
    for metric in LATENCIES:
        values = [facts[f"{statistic}_{metric}_ms"] for statistic in statistics]
        if any(value is not None for value in values):
            rows.append((metric, *(f"{value:.2f}" for value in values)))
    if rows:
        print_table("\nMilliseconds", rows, ("", *statistics))
