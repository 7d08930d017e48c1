"""`tokenmill verify`: receipts of texts, checked by one pass over each."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import CHAT_TEMPLATE, JSON, MODEL, QUIET, argument, option
from tokenmill.cli.process.display import echo, print_json, print_table, progress_on_stderr
from tokenmill.cli.verify.groups import Given, GroupOutcome, check_all
from tokenmill.errors import ReceiptError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.receipts.file import ReceiptEntry, read_receipts
from tokenmill.receipts.verification import VERDICTS
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import counted

EXAMPLES = (
    'tokenmill generate -p "Once upon a time" --temperature 0.8 --seed 7 --receipt tale.json',
    "tokenmill verify tale.json",
    "tokenmill verify answers.jsonl --model ./moved/model --json",
)

SHOWN = 20
"""The table has a line for each verified receipt too if there are no more receipts than these."""
MOST = 1000
"""The table and the reasons under it show at most this many receipts."""
ORDER = ("refused", "unreadable", "unchecked", "consistent", "verified")
"""The verdicts in the order in which they are shown where there are more receipts than MOST."""
RECEIPTS = "Receipts"

WORDS = {
    "tokenizer": "Use the tokenizer of this model, if the text was generated with `--tokenizer`.",
    "program": "Another program than the receipts say. Default: theirs, or what runs here.",
    "dtype": "Another data type than the receipts say. Default: theirs.",
    "scheme": "Matrices stored otherwise than the receipts say. Default: as they say.",
    "device": "Another device than the receipts say. Default: theirs, or what is here.",
    "max_sequences": "Receipts that are computed together. Default: up to 8.",
    "cache_tokens": "Slots in the cache over all sequences. Default: what the receipts need.",
}
ONLY = ("tokenizer", "program", "dtype", "scheme", "device", "threads", "max_sequences", "cache_tokens")


def command(
    context: Context,
    engine: EngineConfig,
    files: list[Path] = argument(..., "FILE", "Receipts: of `generate --receipt`, or answers of a server.", RECEIPTS),
    model: str | None = option(None, "Where the model lies. Default: where the receipts say, if it is here.", MODEL),
    chat_template: Path | None = CHAT_TEMPLATE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Check receipts: whether a model, a prompt and settings give the text that a receipt says.

    The tokens are checked by one pass over prompt and text, several times as fast as generating. Exit code 0: all are
    verified; 1: something is not as a receipt says, which the table names; 2: something could not be checked, or only
    as far as another build can.
    """
    with held_interrupts():
        import numpy  # noqa: F401

    entries = _entries_of(files)
    typed = {name: getattr(engine, name) for name in ONLY if name in context.origins}
    started_s, num_done = time.perf_counter(), 0
    with progress_on_stderr(quiet) as progress:

        def count() -> None:
            nonlocal num_done
            num_done += 1
            progress.advance(num_done, len(entries))

        outcomes = check_all(entries, Given(model, chat_template, typed), progress, count)
    elapsed_s = time.perf_counter() - started_s
    if json:
        print_json(_document(outcomes, elapsed_s))
    else:
        _show(outcomes, elapsed_s)
    if code := exit_code(outcomes):
        sys.exit(code)


def _entries_of(files: Sequence[Path]) -> list[ReceiptEntry]:
    """Read the entries of all files. A file that cannot be read is an entry, too, if there is anything else."""
    found, errors = list[ReceiptEntry](), list[ReceiptError]()
    for file in files:
        try:
            found.extend(read_receipts(file))
        except ReceiptError as error:
            found.append(ReceiptEntry(str(file), None, str(error)))
            errors.append(error)
    if len(errors) == len(found):
        raise errors[0]
    return found


def exit_code(outcomes: Sequence[GroupOutcome]) -> int:
    """Return 1 if something was refused; else 2 if something is not verified."""
    verdicts = {each.found.verdict for each in outcomes}
    return 1 if "refused" in verdicts else 2 * (verdicts != {"verified"})


def _document(outcomes: Sequence[GroupOutcome], elapsed_s: float) -> dict[str, Any]:
    return {
        "verified": sum(each.found.is_verified for each in outcomes),
        "receipts": [
            {
                "where": each.where,
                "verdict": each.found.verdict,
                "model": None if each.receipt is None else each.receipt.model["name"],
                "tokens": each.found.num_tokens,
                "findings": [asdict(one) for one in each.found.findings],
                "notes": list(each.found.notes),
            }
            for each in outcomes
        ],
        "elapsed_s": elapsed_s,
    }


def _show(outcomes: Sequence[GroupOutcome], elapsed_s: float) -> None:
    is_short = len(outcomes) <= SHOWN
    shown = [each for each in outcomes if is_short or each.found.reasons or not each.found.is_verified]
    num_left = len(shown) - MOST
    if num_left > 0:
        shown = sorted(shown, key=lambda each: ORDER.index(each.found.verdict))[:MOST]
    lines = [_line(each) for each in shown if is_short or not each.found.is_verified]
    if lines:
        print_table("", lines, ("receipt", "verdict", "tokens", "model"))
    for each in shown:
        for reason in each.found.reasons:
            echo(f"{each.where}: {reason}")
    if num_left > 0:
        echo(f"{num_left:,} more are not shown here (--json prints all)")
    counts = Counter(each.found.verdict for each in outcomes)
    told = ", ".join(f"{counts[name]:,} {name}" for name in VERDICTS if counts[name])
    echo(f"{counted(len(outcomes), 'receipt')}: {told}; {elapsed_s:.1f} s")


def _line(outcome: GroupOutcome) -> tuple[str, ...]:
    receipt, found = outcome.receipt, outcome.found
    name = "" if receipt is None else str(receipt.model["name"])
    return outcome.where, found.verdict, f"{found.num_tokens:,}" if receipt else "", name
