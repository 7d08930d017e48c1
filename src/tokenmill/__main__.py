"""`python -m tokenmill`: the command line."""

from tokenmill.cli.main import run

if __name__ == "__main__":
    run()
