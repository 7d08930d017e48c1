"""The command line as it is started, by `python -m tokenmill` or by the `tokenmill` script."""

import sys

__all__ = ["run"]


def run() -> None:
    """Ctrl-C ends it without a traceback, even while the command line itself is imported."""
    try:
        from tokenmill.cli.main import run as run_verb  # noqa: PLC0415  (its imports take a while)

        run_verb()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
