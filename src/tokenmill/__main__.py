"""`python -m tokenmill`: the command line."""

from tokenmill.cli.process.start import run

if __name__ == "__main__":
    run()
