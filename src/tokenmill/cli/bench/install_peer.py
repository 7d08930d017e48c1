"""`tokenmill bench install-peer`: an environment for an engine to be measured against."""

from tokenmill.cli.parser.options import QUIET, argument, option
from tokenmill.cli.process.display import echo, progress_on_stderr

EXAMPLES = (
    "tokenmill bench install-peer transformers",
    "tokenmill bench install-peer llama.cpp",
    "tokenmill bench peers",
)


def command(
    name: str = argument(..., "NAME", "transformers, llama.cpp, xllamacpp or openvino.", "Peer"),
    again: bool = option(False, "Make it anew where there is one already.", "Peer"),
    quiet: bool = QUIET,
) -> None:
    """Make a Python environment for a peer, in tokenmill's cache folder, with pip.

    Nothing of it touches the environment that tokenmill runs in. llama.cpp is built from source for this processor,
    which takes about 6 minutes on 2 cores and a C++ compiler.
    """
    from tokenmill.bench.peers.known import find_peer, install

    peer = find_peer(name)
    with progress_on_stderr(quiet) as progress:
        python = install(peer, again, progress)
    echo(f"{name}: {python}")
