"""The command line as it is started: Ctrl-C ends it without a traceback, even while the rest of it is imported."""

import sys


def run() -> None:
    """Run the command: the entry point of the `tokenmill` script and of `python -m tokenmill`."""
    try:
        from tokenmill.cli.main import run as run_verb

        run_verb()
    except KeyboardInterrupt:
        sys.exit(130)
