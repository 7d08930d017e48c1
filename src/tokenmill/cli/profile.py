"""`tokenmill profile`: where the time of a generation goes, and a trace to look at."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import load_engine
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import JSON, MODEL_NAME, OUTPUT, QUIET, option, with_defaults
from tokenmill.cli.prefill import FORCE, check_target
from tokenmill.cli.process.display import echo, print_json, print_table, progress_on_stderr, remark
from tokenmill.cli.prompts import IDS, TEXTS, check_waiting, gather
from tokenmill.cli.report import program_facts, versions
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.memory.atomic_file import writing
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.units import size

if TYPE_CHECKING:  # imports torch
    from tokenmill.engine.engine import Engine

EXAMPLES = (
    'tokenmill profile -p "Why is the sky blue?" -n 32',
    "tokenmill profile smollm2-135m --level light -o trace.json",
    'tokenmill profile -p "One" -p "Two" --max-sequences 2 --level verbose -o trace.json --json',
)

DEFAULT_PROMPT = "Once upon a time there was a miller who lived by a river, and every morning before the sun came up he"
WITHOUT = ("ignore_eos",)


def command(
    context: Context,
    sampling: SamplingParams,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    prompt: list[str] | None = TEXTS,
    tokens: list[str] | None = IDS,
    level: str = option(
        "light", "none: figures; light: steps by phase; verbose: torch's profiler too.", OUTPUT, metavar="NAME"
    ),
    output: Path | None = option(None, "Write the trace there (JSON).", OUTPUT, "-o", metavar="FILE"),
    force: bool = FORCE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Say where the time of a generation goes, by phase and step, and what it cost to measure that.

    The trace opens in ui.perfetto.dev and chrome://tracing. The generation runs unmeasured, measured, and unmeasured
    again; the tokens are the same. It goes on past the model's own end, so that there is something to measure. Without
    a prompt it continues a sentence of 24 words.
    """
    with held_interrupts():
        from tokenmill.measure.profile import check_level, profile
        from tokenmill.measure.trace import looks_traced

    check_level(level, "--level")
    if output is not None:
        if level == "none":
            raise ConfigError("--output", str(output), "only with --level light or verbose: none makes no trace")
        check_target(output, "--output", force, looks_traced, "trace of tokenmill profile")
    sampling = replace(sampling, ignore_eos=True)
    prompts = gather(prompt, None, tokens) if prompt or tokens else [DEFAULT_PROMPT]
    check_waiting(engine, len(prompts) * sampling.n)
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(replace(engine, model=model), progress)
        sampling = with_defaults(context.origins, sampling, loaded.core.inputs.defaults)
        found = profile(loaded, prompts, sampling, level, stage=progress.stage)
    document = found.document() | _about(loaded, sampling)
    said = "" if output is None else _write(output, found.trace or {}, document)
    if json:
        print_json(document)
    else:
        _show(document)
    if output is not None and document["trace"] is None:
        raise TokenmillError(said)
    if said and not quiet:
        remark(said)


def _write(output: Path, trace: dict[str, Any], document: dict[str, Any]) -> str:
    """Write the trace, note its place in the document, and return a line about it. It never fails: figures come
    first.
    """
    from tokenmill.measure.trace import as_bytes

    data = as_bytes(trace)
    try:
        with writing(output, sync=False) as file:
            file.write(data)
    except OSError as error:
        return f"{output} cannot be written: {error.strerror}; the figures are complete, the trace is not kept"
    document["trace"] = str(output)
    return f"trace of {size(len(data))} in {output}: open it in ui.perfetto.dev or chrome://tracing"


def _about(engine: "Engine", sampling: SamplingParams) -> dict[str, Any]:
    """Return the settings and versions that a reader needs who wants to repeat it."""
    return {
        "program": program_facts(engine),
        "settings": {**asdict(engine.config), **asdict(sampling)},
        "versions": versions(),
        "trace": None,
    }


def _show(document: dict[str, Any]) -> None:
    settings = document["settings"]
    echo(
        f"{document['num_prompt_tokens']} prompt + {document['num_new_tokens']} new tokens · first token "
        f"{document['ttft_s']:.3f} s · {document['tokens_per_s']:.1f} tokens/s · {settings['dtype']} "
        f"{document['program']['name']}, {settings['device']} (unmeasured)"
    )
    if document["level"] == "none":
        return
    echo()
    print_table("Steps, by phase", _phase_rows(document["steps"]), _phase_header(document["steps"]), ("share",))
    if settings["device"] != "cpu":
        echo("On a GPU the forward is only launched in its phase; sampling waits for it.")
    if document["operations"]:
        echo()
        rows = [
            (one["name"], str(one["calls"]), f"{one['total_ms']:.2f}", f"{100 * one['share']:.1f} %")
            for one in document["operations"]
        ]
        print_table("Costliest operations, watched", rows, ("name", "calls", "total ms", "share"))
    echo()
    echo(_memory(document["memory"]))
    echo(cost_line(document["cost"], document["level"]))


def _phase_header(steps: dict[str, Any]) -> tuple[str, ...]:
    return ("", *(words for kind in steps for words in (f"{kind}, ms per pass", "share")))


def _phase_rows(steps: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name in next(iter(steps.values()))["phases"]:
        found = [one["phases"][name] for one in steps.values()]
        yield (name, *(words for one in found for words in (f"{one['ms']:.3f}", f"{100 * one['share']:.1f} %")))
    yield ("together", *(words for one in steps.values() for words in (f"{one['ms']:.3f}", "")))
    yield ("passes", *(words for one in steps.values() for words in (str(one["num_passes"]), "")))
    yield ("steps", *(words for one in steps.values() for words in (str(one["num_steps"]), "")))
    yield ("tokens fed", *(words for one in steps.values() for words in (str(one["num_tokens"]), "")))
    yield ("tokens new", *(words for one in steps.values() for words in (str(one["num_new"]), "")))


def _memory(readings: list[dict[str, Any]]) -> str:
    resident = [reading["resident_bytes"] for reading in readings]
    parts = [
        f"memory of the process {size(resident[0])} after the first step, at most {size(max(resident))}",
        f"at most {max(reading['blocks_in_use'] for reading in readings)} cache blocks in use",
    ]
    if readings[0]["device_bytes"] is not None:
        parts.append(f"at most {size(max(reading['device_bytes'] for reading in readings))} on the device")
    return "; ".join(parts)


def cost_line(cost: dict[str, Any], level: str) -> str:
    """Say in one line what measuring cost, and whether that exceeds the scatter of the unmeasured runs."""
    first, second = cost["plain_s"]
    words = (
        f"cost of measuring: {cost['measured_s']:.3f} s with level {level}, {first:.3f} s and {second:.3f} s without: "
        f"{100 * cost['cost_share']:+.1f} %"
    )
    if cost["cost_share"] <= 0:
        words += ", that is, too little to be seen among what the machine does besides"
    elif cost["cost_share"] <= cost["scatter_share"]:
        words += f", which is within the {100 * cost['scatter_share']:.1f} % by which the two differ by themselves"
    words += f"; {cost['gathering_s']:.2f} s around it to start, stop and read out" if level == "verbose" else ""
    return words + ("; same tokens" if cost["same_tokens"] else "; THE TOKENS DIFFER, which is a bug of ours")
