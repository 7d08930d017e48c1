"""`tokenmill bench peers`: the same model and tokens on other engines, taking turns in one run."""

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.bench.points import Point, parse_counts, sweep
from tokenmill.cli.bench.rows import MEASURED, OUTPUT_FILE, OWN, Row, RowFile
from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.options import JSON, MODEL_NAME, QUIET, option
from tokenmill.cli.process.display import echo, print_table, progress_on_stderr, remark
from tokenmill.errors import ConfigError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # imports torch
    from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.units import counted

EXAMPLES = (
    "tokenmill bench peers",
    "tokenmill bench peers --only tokenmill,llama.cpp --batch 1,16 --prompt 128 --new 64",
    "tokenmill bench peers --peer openvino=/opt/openvino/bin/python --peer llama-bench=./llama-bench",
    "tokenmill bench install-peer llama.cpp",
)

PEERS = "Peers"
# Follow from the points, or are the same for all engines.
WITHOUT = (*OWN, "max_length", "cache", "device")
AUTOMATIC = ("tokenmill", "transformers", "llama.cpp", "xllamacpp", "openvino")
PLAIN = ("off", "multi_step")  # decoding without guesses: several steps in one call guess nothing


def command(
    engine: EngineConfig,
    model: str = MODEL_NAME,
    only: str | None = option(None, "Only these peers, as a,b,c.", PEERS, metavar="NAMES"),
    peer: list[str] | None = option(
        None, "The Python that has this peer, or its program. May be repeated.", PEERS, metavar="NAME=PATH"
    ),
    batch: str = option("1", "Numbers of sequences that run together.", MEASURED, "-b", metavar="N,…"),
    prompt: str = option("128", "Prompt tokens of each sequence.", MEASURED, "-P", metavar="N,…"),
    new: str = option("64", "New tokens of each sequence.", MEASURED, "-n", metavar="N,…"),
    rounds: int = option(5, "Rounds; in each, every peer runs once.", MEASURED, "-r", minimum=1),
    load_limit: float = option(300.0, "Seconds that a peer may load.", PEERS, minimum=1),
    run_limit: float = option(120.0, "Seconds that one run may take.", PEERS, minimum=1),
    output: Path | None = OUTPUT_FILE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure tokenmill against other engines: the same model, prompt ids and threads, taking turns in one run.

    Each engine runs in an environment of its own (`tokenmill bench install-peer NAME`, or --peer NAME=PYTHON). One that
    is absent, crashes or hangs is named, and the others go on. Ratios are ours over theirs, round by round, without
    speculation, which has a row of its own. llama.cpp is run with flash attention and without; the better one counts.
    """
    points = _points(batch, prompt, new)
    wanted = _parse_only(only, peer or [])
    file = RowFile(output)
    with held_interrupts():
        from tokenmill.bench.peers.contest import Contest, Prompts
        from tokenmill.bench.peers.known import find_peer
        from tokenmill.measure.machine import quick_probe
        from tokenmill.model.families import read_config

    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        config, threads, options = _resolve(replace(engine, model=model), checkpoint)
        num_tokens = (rounds + 1) * sum(point.batch * point.prompt for point in points)  # one more to warm up
        prompts = Prompts(checkpoint, read_config(checkpoint.config).vocab_size, num_tokens)
        contest = Contest(
            str(checkpoint.path),
            {name: path for name, path in wanted.items() if name in options or not find_peer(name).is_ours},
            threads,
            config.dtype,
            quick_probe,
            progress,
            options=options,
            rounds=rounds,
            load_limit_s=load_limit,
            run_limit_s=run_limit,
        )
        rows: list[Row] = []
        with contest:
            contest.load(points)
            for point in points:
                rows += file.keep(contest.rows(point, partial(prompts.take, point.prompt, point.batch)))
    if not json:
        _print(rows, points, f"{model}, {counted(threads, 'thread')}, {config.dtype}")
    _remark(rows)
    file.finish(rows, {"rows": rows} if json else None)


def _points(*texts: str) -> list[Point]:
    counts = [
        parse_counts(text, option, minimum)
        for text, option, minimum in zip(texts, ("--batch", "--prompt", "--new"), (1, 1, 2), strict=True)
    ]
    return sweep(*counts)


def _parse_only(only: str | None, given: list[str]) -> dict[str, str | None]:
    """Map each chosen peer to the path given for it. Our own engine, with speculation and without, is always chosen."""
    from tokenmill.bench.peers.known import OURS, SPECULATING, command_for, find_peer

    paths = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ConfigError("--peer", text, "NAME=PATH, as llama.cpp=/opt/llama/bin/python")
        command_for(find_peer(name), path)  # refused now, not minutes later
        paths[name] = path
    names = [word.strip() for word in only.split(",")] if only is not None else [*AUTOMATIC, *paths]
    chosen = dict.fromkeys([OURS, SPECULATING, *(find_peer(name).name for name in names), *paths])
    return {name: paths.get(name) for name in chosen}


def _resolve(engine: EngineConfig, checkpoint: "Checkpoint") -> tuple[EngineConfig, int, dict[str, dict[str, Any]]]:
    """Find the settings and threads that all engines get, and our own options: plain, and with speculation."""
    from tokenmill.bench.peers.known import OURS, SPECULATING
    from tokenmill.kernels.threads import default_threads
    from tokenmill.loader.resolve import resolve
    from tokenmill.model.families import read_config
    from tokenmill.speculate.proposer import choose

    resolved = resolve(engine, read_config(checkpoint.config), default_threads())
    finds_drafts = resolved.program.finds_drafts
    speculate = choose(resolved.config, finds_drafts).speculate
    plain = speculate if speculate in PLAIN else "multi_step" if finds_drafts else "off"
    chosen = _changed(engine)
    options = {OURS: {**chosen, "speculate": plain, "draft_model": None}}
    if speculate not in PLAIN:
        options[SPECULATING] = {**chosen, "speculate": speculate}
    return resolved.config, resolved.config.threads, options


def _changed(engine: EngineConfig) -> dict[str, Any]:
    """List the settings that the user has changed; a dtype of auto leaves a quantised file as it is."""
    usual = EngineConfig()
    names = [field.name for field in fields(engine) if field.name not in ("model", "threads", "dtype")]
    chosen = {name: value for name in names if (value := getattr(engine, name)) != getattr(usual, name)}
    return {**chosen, "dtype": "auto"} if engine.dtype == "auto" else chosen


HEADER = (
    "engine",
    "decode tok/s",
    "min to max",
    "decode ours over",
    "prefill tok/s",
    "prefill ours over",
    "same tokens",
    "accepted",
    "load s",
)
EXPENDABLE = ("load s", "min to max", "prefill ours over", "same tokens", "decode ours over")


def _print(rows: list[Row], points: list[Point], title: str) -> None:
    for point in points:
        lines = [_line(row) for row in rows if row["test"] == point.title]
        print_table(f"{title}: {point.title}", lines, HEADER, EXPENDABLE)
    good = {row["label"]: row for row in rows if row["status"] == "ok"}
    for name, row in good.items():
        versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
        how = f"; {row['variant']}" if row.get("variant") else ""
        echo(f"{name}: {versions}; {row['note']}{how}")
    if good:
        probes = [row["probe_gb_s"] for row in rows if row["status"] == "ok"]
        echo(f"read bandwidth beside the runs: {min(probes):.0f} to {max(probes):.0f} GB/s (medians per engine)")


def _remark(rows: list[Row]) -> None:
    if any(row["noisy"] for row in rows if row["status"] == "ok"):
        remark("the bandwidth changed while it was measured: ratios are taken round by round; look at their spread")
    for name, status, reason in dict.fromkeys((row["label"], row["status"], row["reason"]) for row in rows):
        if status != "ok":
            remark(f"{name}: {status}: {reason}")


def _line(row: Row) -> tuple[str, ...]:
    if row["status"] != "ok":
        return row["label"], row["status"], *[""] * 7
    same, drafted = row.get("same_tokens"), row.get("drafted")
    return (
        row["label"],
        f"{row['decode_tok_s']:,.1f}",
        f"{row['decode_tok_s_min']:,.1f} to {row['decode_tok_s_max']:,.1f}",
        _ratio(row, "decode"),
        f"{row['prefill_tok_s']:,.0f}",
        _ratio(row, "prefill"),
        "" if same is None else f"{100 * same:.0f} %",
        f"{100 * row['accepted'] / drafted:.0f} % of {drafted:,}" if drafted else "",
        f"{row['load_s']:.1f}",
    )


def _ratio(row: Row, phase: str) -> str:
    if f"{phase}_ratio" not in row:
        return ""
    return f"{row[f'{phase}_ratio']:.2f} ({row[f'{phase}_ratio_min']:.2f} to {row[f'{phase}_ratio_max']:.2f})"
