"""`tokenmill bench`: the group of verbs that measure. Without a verb it runs the benchmark itself."""

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.parser.command import VerbGroup
from tokenmill.cli.parser.options import examples
from tokenmill.errors import TokenmillError

EXAMPLES = examples(
    "tokenmill bench",
    "tokenmill bench --tests pp512,tg128 --batch 1,4,16",
    "tokenmill bench sweep --batch 1,2,4 --prompt 128,512 --new 32 --output sweep.jsonl",
    "tokenmill bench plot sweep.jsonl",
    "tokenmill bench run --help",
)

# What the extra `bench` installs; without it the verbs that need one of these say so.
EXTRA = ("httpx2", "matplotlib")


class _Bench(VerbGroup):
    """`bench`, `bench MODEL` and `bench --batch 4` mean `bench run …`; a missing package of the extra is an error."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put `run` before what names no verb, unless it nearly does."""
        if args and not args[0].startswith("-") and args[0] not in self.names and not Path(args[0]).exists():
            self.suggest(ctx, args[0])
        if not args or args[0] not in (*self.names, "--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRA:
                raise
            raise TokenmillError(
                f"`{ctx.command_path} {ctx.invoked_subcommand}` needs {package}, which is not installed: "
                "pip install 'tokenmill[bench]'"
            ) from None


command = _Bench(
    name="bench",
    help="How fast, how near to this machine's limit, and is it still the same text. Without a verb: run.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
)
