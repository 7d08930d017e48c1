"""`tokenmill bench install-peer`: an environment for an engine to be measured against."""

from typing import Annotated

import typer

from tokenmill.cli.parser.options import Quiet, examples, option
from tokenmill.cli.process.display import progress_on_stderr

EXAMPLES = examples(
    "tokenmill bench install-peer transformers",
    "tokenmill bench install-peer llama.cpp",
    "tokenmill bench peers",
)


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="transformers, llama.cpp, xllamacpp or openvino.",
            rich_help_panel="Peer",
        ),
    ],
    again: Annotated[bool, option("Peer", "--again", help="Make it anew where there is one already.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a Python environment for a peer, in tokenmill's cache folder, with pip.

    Nothing of it touches the environment that tokenmill runs in. llama.cpp is built from source for this processor,
    which takes about 6 minutes on 2 cores and a C++ compiler.
    """
    from tokenmill.bench.peers.install import install
    from tokenmill.bench.peers.known import find_peer

    peer = find_peer(name)
    with progress_on_stderr(quiet) as progress:
        python = install(peer, again, progress)
    typer.echo(f"{name}: {python}")
