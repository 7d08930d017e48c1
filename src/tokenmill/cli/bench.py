"""`tokenmill bench`: the group of verbs that measure. Without a verb it runs the benchmark itself."""

import typer
from typer.core import TyperGroup

from tokenmill.cli import (
    bench_install_peer,
    bench_ladder,
    bench_load,
    bench_machine,
    bench_peers,
    bench_plot,
    bench_run,
    bench_sweep,
)
from tokenmill.cli.options import examples

__all__ = ["bench"]

EXAMPLES = examples(
    "tokenmill bench",
    "tokenmill bench --tests pp512,tg128 --batch 1,4,16",
    "tokenmill bench sweep --batch 1,2,4 --prompt 128,512 --new 32 --output sweep.jsonl",
    "tokenmill bench plot sweep.jsonl",
    "tokenmill bench run --help",
)


class _RunUnlessNamed(TyperGroup):
    """`bench`, `bench MODEL` and `bench --batch 4` mean `bench run …`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put `run` before what names no verb."""
        if not args or args[0] not in (*self.commands, "--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=_RunUnlessNamed,
    help="How fast, how near to this machine's limit, and is it still the same text. Without a verb: run.",
    epilog=EXAMPLES,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    bench_run,
    bench_sweep,
    bench_ladder,
    bench_peers,
    bench_install_peer,
    bench_load,
    bench_plot,
    bench_machine,
):
    name = verb.__name__.rpartition(".bench_")[2].replace("_", "-")
    bench.command(name, epilog=verb.EXAMPLES)(verb.command)
