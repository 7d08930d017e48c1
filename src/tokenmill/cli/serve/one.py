"""`tokenmill serve` of one model, in this process or in replicas of it."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from socket import socket
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from tokenmill.cli.models import check_model, load_engine, read_model_config, read_template
from tokenmill.cli.process.display import progress_on_stderr, remark
from tokenmill.cli.serve.folders import with_prefixes
from tokenmill.cli.serve.live import live_view
from tokenmill.serve.http.address import Address, is_loopback, listen
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.recommended import OPENAI, in_force, say_origins
from tokenmill.units import counted, size

if TYPE_CHECKING:  # these import torch and the server
    from tokenmill.engine.engine import Engine
    from tokenmill.serve.start.options import Options

OPEN = "warning: {url} accepts requests without an API key from other machines; set --api-key-file"


def serve_one(
    engine: EngineConfig,
    num_sequences: int | None,
    chat_template: Path | None,
    options: "Options",
    address: Address,
    quiet: bool,
    is_watched: bool,
) -> bool:
    """Load the model and serve it until a signal comes; tell whether the engine lived to the end."""
    taken = _listen(address, engine.model, quiet)
    address = address.at(taken)
    from tokenmill.loader.fit import fit_for_many
    from tokenmill.serve.start.server import Server

    with progress_on_stderr(quiet) as progress:
        model = read_model_config(engine.model, progress)
        fitted = fit_for_many(with_prefixes(engine), model, num_sequences, follow=True)
        loaded = load_engine(fitted, progress, chat_template)
    warn_if_open(taken, options, address)
    server = Server(loaded, taken, options, None if quiet else remark)
    if not quiet:
        remark(_greeting(loaded, options.name, address.url))
        remark(f"requests that name no sampling: {say_origins(in_force(loaded.core.inputs.defaults, OPENAI))}")
        if server.tools is not None and loaded.tokenizer is not None and loaded.tokenizer.chat_template is not None:
            remark(f"calls of functions: {server.tools}")
        if loaded.adapters:
            remark(f"adapters, which requests name as their model: {', '.join(loaded.adapters)}")
    with live_view(is_watched, lambda: [server.served]):
        return server.serve_to_end()


def _listen(address: Address, model: str, quiet: bool) -> socket:
    """Take the socket of the server. A port in use and a wrong file are refused here, before torch is imported."""
    taken = listen(address)
    try:
        with progress_on_stderr(quiet) as progress:
            check_model(model, progress)
    except BaseException:
        taken.close()
        raise
    return taken


def serve_replicas(
    number: int,
    engine: EngineConfig,
    num_sequences: int | None,
    chat_template: Path | None,
    options: "Options",
    address: Address,
    quiet: bool,
) -> bool:
    """Start this many engines and serve them until a signal comes; true."""
    from tokenmill.loader.default_length import part_of_free
    from tokenmill.loader.fit import SEQUENCES_PER_CORE, fit_for_many
    from tokenmill.memory.available import available_processors
    from tokenmill.scale.ray_version import check_ray

    check_ray()
    taken = _listen(address, engine.model, quiet)
    address = address.at(taken)
    options = replace(options, batch_dir=None)  # each of them would run every batch
    threads = engine.threads or max(1, available_processors() // number // engine.tensor_parallel)
    engine = replace(with_prefixes(engine), threads=threads)
    with progress_on_stderr(quiet) as progress:
        model = read_model_config(engine.model, progress)  # and the files are there, before each replica looks
        num_sequences = num_sequences or SEQUENCES_PER_CORE * threads
        fitted = fit_for_many(engine, model, num_sequences, part_of_free(number), follow=True)
        template = None if chat_template is None else read_template(chat_template)
        progress.stage(f"starting {number} replicas")
        from tokenmill.scale.gate import GateServer
        from tokenmill.scale.replicas import Setup, replicas
    signal.signal(signal.SIGTERM, _end)  # while the replicas start and end; between them the server has its own
    with replicas(Setup(fitted, options, number, chat_template=template), number) as fleet:
        warn_if_open(taken, options, address)
        if not quiet:
            each = f"{fitted.max_sequences} sequences and {counted(threads, 'thread')}"
            remark(f"{options.name} at {address.url}: {number} replicas, each with {each}; Ctrl-C ends")
        GateServer(fleet, taken, options, None if quiet else remark).serve_to_end()
    return True


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def warn_if_open(taken: socket, options: "Options", address: "Address") -> None:
    if not (options.keys or is_loopback(taken)):
        remark(OPEN.format(url=address.url))


def _greeting(engine: "Engine", name: str, url: str) -> str:
    config = engine.config
    threads = counted(config.threads, "thread")
    where = f"{config.tensor_parallel} ranks with {threads}" if config.tensor_parallel > 1 else threads
    return (
        f"{name} at {url}: {config.max_sequences} sequences of up to {config.max_length} tokens, a cache of "
        f"{config.cache_tokens} ({size(engine.memory['cache_bytes'])}) in blocks of {config.block_size}, "
        f"{engine.program_name} {config.dtype}, {where}; Ctrl-C ends"
    )
