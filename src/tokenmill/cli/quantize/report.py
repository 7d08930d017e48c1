"""The report of `tokenmill quantize`: what each kind of tensor has lost, and the whole model."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.calibrate.texts import Texts
from tokenmill.cli.process.display import echo, print_table
from tokenmill.cli.report import versions
from tokenmill.measure.perplexity import Comparison
from tokenmill.units import size
from tokenmill.weights.write.quantize import Kind

EXPENDABLE = ("count", "before", "error")  # the first to go first


@dataclass
class Report:
    """The outcome of `quantize`. kinds, changes: see quantize_calibrated. peak_bytes: without the comparison."""

    model: str
    output: Path
    algorithm: str
    settings: dict[str, Any]
    kinds: dict[str, Kind] = field(default_factory=dict)
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0
    comparison: Comparison | None = None
    measured_on: Texts | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of all files that were written."""
        files = self.output.iterdir() if self.output.is_dir() else [self.output]
        return sum(file.stat().st_size for file in files)

    @property
    def sorted_kinds(self) -> list[Kind]:
        """The kinds of tensors; kinds that stayed in floating point come last."""
        return sorted(self.kinds.values(), key=lambda kind: kind.error is None)

    @property
    def is_rounded(self) -> bool:
        """True if any tensor became codes; with scheme "none" no tensor does."""
        return any(kind.error is not None for kind in self.kinds.values())

    @property
    def bits_per_weight(self) -> float:
        """The bits per weight of the matrices that are codes, scales included."""
        coded = [kind for kind in self.kinds.values() if kind.error is not None]
        return 8 * sum(kind.bytes_after for kind in coded) / max(sum(kind.num_weights for kind in coded), 1)

    def changes_of(self, kind: Kind) -> tuple[float, float] | None:
        """Return the relative errors of the outputs of a kind's matrices, to nearest and as they were rounded."""
        found = [self.changes[name] for name in kind.names if name in self.changes]
        if not found:
            return None
        return tuple((sum(each) / len(each)) ** 0.5 for each in zip(*found, strict=True))


def show(report: Report) -> None:
    """Print the report as tables."""
    calibrated = bool(report.changes)
    header = ["tensors", "count", "stored as", "error"]
    header += ["of outputs, to nearest", f"by {report.algorithm}"] if calibrated else []
    rows = [_row(report, kind, calibrated) for kind in report.sorted_kinds]
    settings = report.settings
    title = f"{report.model} in {settings['scheme']}, groups of {settings['group']}, by {report.algorithm}"
    title = title if report.is_rounded else f"{report.model} as it is"
    print_table(title, [*rows, _total(report, calibrated)], (*header, "before", "after"), EXPENDABLE)
    if report.comparison is not None and report.measured_on is not None:
        found, text = report.comparison, report.measured_on
        lines = [
            ("perplexity of the source", f"{found.reference.perplexity:.4f}"),
            ("perplexity now", f"{found.ours.perplexity:.4f} ({found.ratio - 1:+.2%})"),
            ("mean KL divergence", f"{found.kl_divergence:.3g} nats per token"),
            ("same likeliest token", f"{found.agreement:.2%}"),
        ]
        print_table(f"{found.ours.num_scored:,} tokens {text.origin}, not calibrated on", lines)
    bits = f", {report.bits_per_weight:.2f} bits per weight of the matrices" if report.is_rounded else ""
    took = f"{report.seconds:.0f} s, at most {size(report.peak_bytes)} of memory"
    echo(f"{report.output}: {size(report.num_bytes)}{bits}; {took}")
    if report.is_rounded and not calibrated:
        echo("--algorithm gptq takes minutes and loses less: docs/quantization.md")


def _row(report: Report, kind: Kind, calibrated: bool) -> tuple[str, ...]:
    error = "" if kind.error is None else f"{kind.error:.2%}"
    changes = report.changes_of(kind)
    outputs = ("", "") if changes is None else tuple(f"{change:.2%}" for change in changes)
    sizes = size(kind.bytes_before), size(kind.bytes_after)
    return (kind.name, str(kind.count), kind.stored_as, error, *(outputs if calibrated else ()), *sizes)


def _total(report: Report, calibrated: bool) -> tuple[str, ...]:
    kinds = report.kinds.values()
    before, after = (sum(getattr(kind, name) for kind in kinds) for name in ("bytes_before", "bytes_after"))
    count = str(sum(kind.count for kind in kinds))
    return ("total", count, "", "", *(("", "") if calibrated else ()), size(before), size(after))


def document(report: Report) -> dict[str, Any]:
    """Convert the whole report to a JSON document."""
    found, text = report.comparison, report.measured_on
    measured = found and {
        "tokens": found.ours.num_scored,
        "text": text and text.origin,
        "source_perplexity": found.reference.perplexity,
        "perplexity": found.ours.perplexity,
        "perplexity_ratio": found.ratio,
        "kl_divergence": found.kl_divergence,
        "agreement": found.agreement,
    }
    return {
        "path": str(report.output),
        "algorithm": report.algorithm,
        **report.settings,
        "num_bytes": report.num_bytes,
        "bits_per_weight": report.bits_per_weight,
        "elapsed_s": report.seconds,
        "peak_bytes": report.peak_bytes,
        "comparison": measured,
        "tensors": [_facts(report, kind) for kind in report.sorted_kinds],
        "versions": versions(),
    }


def _facts(report: Report, kind: Kind) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(kind).items() if not key.startswith("squared_")}
    before, after = report.changes_of(kind) or (None, None)
    return {**facts, "relative_error": kind.error, "output_error_to_nearest": before, "output_error": after}
