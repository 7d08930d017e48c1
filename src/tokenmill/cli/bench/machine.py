"""`tokenmill bench machine`: the limits of this machine."""

from dataclasses import asdict

from tokenmill.cli.bench.rows import MEASURED
from tokenmill.cli.parser.options import JSON, QUIET, option
from tokenmill.cli.process.display import print_json, print_table, progress_on_stderr
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.units import counted

SETTINGS = settings_of(EngineConfig)

EXAMPLES = ("tokenmill bench machine", "tokenmill bench machine --again --threads 1 --json")


def command(
    device: str = option("auto", SETTINGS["device"].help, MEASURED, metavar="NAME"),
    threads: int | None = option(None, SETTINGS["threads"].help, MEASURED, minimum=1),
    again: bool = option(False, "Measure now, whatever is kept from before.", MEASURED),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure read bandwidth and arithmetic of this machine: the limits that every benchmark is compared with.

    Kept for a day in tokenmill's cache folder. Shared machines change within seconds, so every benchmark also probes
    the bandwidth beside each repetition.
    """
    with held_interrupts():
        import torch

        from tokenmill.kernels.devices import find_device
        from tokenmill.kernels.threads import default_threads
        from tokenmill.measure.machine import limits

    config = EngineConfig(device=device, threads=threads)  # refuses what every verb refuses
    where = torch.device(find_device(config.device))
    count = config.threads or default_threads()
    with progress_on_stderr(quiet) as progress:
        progress.stage(f"measuring {where} with {counted(count, 'thread')}")
        found = asdict(limits(where, count, again))
    if json:
        print_json(found)
        return
    rows = [(name, f"{value:,.1f}" if isinstance(value, float) else str(value)) for name, value in found.items()]
    print_table("this machine", [row for row in rows if row[0] != "measured_at" and row[1] != "None"])
