"""`tokenmill serve`: the model as a service that speaks OpenAI's protocol."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import check_model, load_engine, read_model_config, read_template
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.config_file import PRESET, read_config_file
from tokenmill.cli.parser.options import CHAT_TEMPLATE, MODEL_NAME, QUIET, option
from tokenmill.cli.process.display import progress_on_stderr, remark
from tokenmill.errors import ConfigError
from tokenmill.hub.download import cache_folder, data_folder
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.registry import TOOL_FORMATS
from tokenmill.serve.http.address import Address, is_loopback, listen
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.recommended import OPENAI, in_force, say_origins
from tokenmill.units import counted, size

if TYPE_CHECKING:  # these import torch and the server
    from tokenmill.engine.engine import Engine
    from tokenmill.serve.start.options import Options

EXAMPLES = (
    "tokenmill serve",
    "tokenmill serve Qwen/Qwen3-0.6B --port 9000 --max-sequences 32",
    "curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"Once upon a time\"}'",
)

SERVER = "Server"
MB = 1_000_000
OPEN = "warning: {url} accepts requests without an API key from other machines; set --api-key-file"
KEY = "TOKENMILL_API_KEY"
WORDS = {
    "max_sequences": "Sequences that run together; others wait. Default: 8 for each processor, at most 64.",
    "cache_tokens": "Slots in the cache over all sequences. Default: max-sequences times max-length, or what fits.",
    "prefix_dir": "Keep shared blocks in this directory for the next start. Default: in the cache folder of tokenmill.",
    "max_length": "Longest text in tokens, prompt and answer. Default: the model's context, as far as memory allows.",
}


REPLICAS = option(
    1,
    "Engines that share the requests, in processes of their own, by Ray (pip install 'tokenmill[ray]'). Each has "
    "--threads, by default its part of the processors. A stream goes on when its engine dies.",
    SERVER,
    minimum=1,
)
MAX_QUEUED = option(
    64, "Sequences that may wait; more are refused with 429.", SERVER, "--max-queued-requests", minimum=0
)
STALL = option(
    0.25,
    "Longest wait for a stream's next token while prompts of others are computed, in seconds: chunks of prompts "
    "are made short enough, down to 16 tokens.",
    SERVER,
    "--max-stall",
    minimum=0.001,
)
TIMEOUT = option(30.0, "Seconds that running requests get after SIGTERM.", SERVER, "--shutdown-timeout", minimum=0)
KEEP_ALIVE = option(75, "Seconds that an idle connection stays open.", SERVER, "--timeout-keep-alive", minimum=0)
RECOMMENDED = option(
    True, "Sample as the model's files, or the maker of a short name, recommend where a request names nothing.", SERVER
)
SESSION_DIR = option(None, "Where clients keep texts by name. Default: in the data folder of tokenmill.", SERVER)
BATCH_DIR = option(
    None, "Where files and batches of clients are kept. Default: in the data folder of tokenmill.", SERVER
)
TOOL_FORMAT = option(
    "auto",
    f"How the model writes calls of functions: {', '.join(TOOL_FORMATS)}. Auto: as its chat template says.",
    SERVER,
)
SEED = option(
    None,
    "Seed of requests that name no seed, which are then repeatable. Default: a new one each time.",
    SERVER,
    minimum=0,
)
RECORD = option(
    None,
    "Append the body of each request to this file, for `tokenmill agent-check`. It holds what clients say.",
    SERVER,
    metavar="FILE",
)
LORA_FOLDER = option(
    None,
    "Clients may load and unload LoRA adapters that lie in this folder. Without it, only the adapters of "
    "--lora-modules are served.",
    SERVER,
    metavar="DIR",
)
CONFIG_FILE = option(
    None,
    "TOML file with options by their names, without the dashes. What is typed goes over it.",
    SERVER,
    metavar="FILE",
    reads=read_config_file,
)
WITHOUT = ("max_waiting",)


def command(
    context: Context,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    host: str = option("127.0.0.1", "Address to listen at. 0.0.0.0 is every address of this machine.", SERVER),
    port: int = option(8000, "Port to listen at.", SERVER, minimum=0, maximum=65535),
    replicas: int = REPLICAS,
    name: str | None = option(None, "What clients call the model. Default: MODEL.", SERVER, "--served-model-name"),
    api_key: str | None = option(None, f"Key that clients must send. Default: {KEY}, if it is set.", SERVER),
    api_key_file: Path | None = option(
        None, "A file with a key in each line; lines that begin with # are skipped.", SERVER
    ),
    max_queued: int = MAX_QUEUED,
    stall: float = STALL,
    drain: float = TIMEOUT,
    keep_alive: int = KEEP_ALIVE,
    generation_config: bool = RECOMMENDED,
    metrics_prefix: str = option(
        "tokenmill", "Prefix of the names at /metrics; vllm makes dashboards of vLLM work.", SERVER
    ),
    log_format: str = option("text", "Format of the line on stderr for each request: text or json.", SERVER),
    ssl_certfile: Path | None = option(None, "Certificate, to serve https.", SERVER),
    ssl_keyfile: Path | None = option(None, "Its private key, if it is in another file.", SERVER),
    session_dir: Path | None = SESSION_DIR,
    batch_dir: Path | None = BATCH_DIR,
    max_file_size: int = option(200, "Longest file that a client may send, in MB.", SERVER, minimum=1),
    max_stored: int = option(10000, "Size of all files of clients, in MB; more are refused.", SERVER, minimum=1),
    chat_template: Path | None = CHAT_TEMPLATE,
    tool_format: str = TOOL_FORMAT,
    seed: int | None = SEED,
    strict: bool = option(False, "Refuse unknown fields of requests.", SERVER),
    record: Path | None = RECORD,
    lora_folder: Path | None = LORA_FOLDER,
    offline: bool = option(False, "Fetch nothing: use only models that are in the cache.", SERVER),
    config: Path | None = CONFIG_FILE,
    preset: str | None = PRESET,
    quiet: bool = QUIET,
) -> None:
    """Serve a model over HTTP: /v1/completions, /v1/chat/completions and /v1/responses, as OpenAI's API has them,
    /v1/messages, as Anthropic's has it, and /api/chat and /api/generate, as Ollama's has them.

    Requests run together and share the rows of prompts that begin alike. SIGTERM or Ctrl-C lets running requests end.
    """
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the hub's client, which is not imported yet, asks for it
    with held_interrupts():
        from tokenmill.serve.start.options import Options, read_keys
    options = Options(keys=read_keys(api_key or os.environ.get(KEY), api_key_file), **_chosen(context.values))
    _check_folders(replicas, batch_dir, lora_folder)
    if chat_template is not None:
        read_template(chat_template)  # refused here, before torch is imported
    engine = replace(engine, model=model, generation_config=generation_config)
    address = Address(host, port, "http" if ssl_certfile is None else "https")
    num_sequences = engine.max_sequences if "max_sequences" in context.origins else None
    run = _serve if replicas == 1 else partial(_serve_replicas, replicas)
    if not run(engine, num_sequences, chat_template, options, address, quiet):
        sys.exit(1)


def _check_folders(replicas: int, batch_dir: Path | None, lora_folder: Path | None) -> None:
    """Refuse folders that several engines do not share, and one that is not there."""
    if replicas > 1 and batch_dir is not None:
        raise ConfigError("--batch-dir", str(batch_dir), "without --replicas: several engines take no batches")
    if replicas > 1 and lora_folder is not None:
        raise ConfigError("--lora-folder", str(lora_folder), "without --replicas: one engine alone would load from it")
    if lora_folder is not None and not lora_folder.is_dir():
        raise ConfigError("--lora-folder", str(lora_folder), "a folder that is there")


def _chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": given["name"] or given["model"],
        "max_queued": given["max_queued"],
        "stall_s": given["stall"],
        "drain_s": given["drain"],
        "keep_alive_s": given["keep_alive"],
        "is_strict": given["strict"],
        "metrics_prefix": given["metrics_prefix"],
        "log_format": given["log_format"],
        "certificate": given["ssl_certfile"],
        "key_file": given["ssl_keyfile"],
        "session_dir": session_folder() if given["session_dir"] is None else given["session_dir"],
        "batch_dir": batch_folder() if given["batch_dir"] is None else given["batch_dir"],
        "max_file": given["max_file_size"] * MB,
        "max_stored": given["max_stored"] * MB,
        "seed": given["seed"],
        "tool_format": given["tool_format"],
        "record": given["record"],
        "lora_folder": given["lora_folder"],
    }


def _serve(
    engine: EngineConfig,
    num_sequences: int | None,
    chat_template: Path | None,
    options: "Options",
    address: Address,
    quiet: bool,
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
    _warn_if_open(taken, options, address)
    server = Server(loaded, taken, options, None if quiet else remark)
    if not quiet:
        remark(_greeting(loaded, options.name, address.url))
        remark(f"requests that name no sampling: {say_origins(in_force(loaded.core.inputs.defaults, OPENAI))}")
        if server.tools is not None and loaded.tokenizer is not None and loaded.tokenizer.chat_template is not None:
            remark(f"calls of functions: {server.tools}")
        if loaded.adapters:
            remark(f"adapters, which requests name as their model: {', '.join(loaded.adapters)}")
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


def _serve_replicas(
    number: int,
    engine: EngineConfig,
    num_sequences: int | None,
    chat_template: Path | None,
    options: "Options",
    address: Address,
    quiet: bool,
) -> bool:
    """Start this many engines and serve them until a signal comes; true."""
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
        fitted = fit_for_many(engine, model, num_sequences or SEQUENCES_PER_CORE * threads, number, follow=True)
        template = None if chat_template is None else read_template(chat_template)
        progress.stage(f"starting {number} replicas")
        from tokenmill.scale.gate import GateServer
        from tokenmill.scale.replicas import Setup, replicas
    with replicas(Setup(fitted, options, number, chat_template=template), number) as fleet:
        _warn_if_open(taken, options, address)
        if not quiet:
            each = f"{fitted.max_sequences} sequences and {counted(threads, 'thread')}"
            remark(f"{options.name} at {address.url}: {number} replicas, each with {each}; Ctrl-C ends")
        GateServer(fleet, taken, options, None if quiet else remark).serve_to_end()
    return True


def _warn_if_open(taken: socket, options: "Options", address: "Address") -> None:
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


# ---- the folders of a server that was given none: sessions, files of batches, blocks of prompts


def _data_folder(name: str) -> Path:
    """Make a folder for what clients give. OSError, or RuntimeError without a home folder."""
    folder = data_folder() / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def session_folder() -> Path:
    """Make the folder in which sessions are kept."""
    try:
        return _data_folder("sessions")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        folder = cache_folder() / "sessions"
        remark(f"warning: sessions are kept in {folder}, a cache ({why}): set TOKENMILL_DATA or --session-dir")
    return folder


def batch_folder() -> Path | None:
    """Make the folder in which files and batches are kept, if there may be one."""
    try:
        return _data_folder("batches")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        remark(f"warning: this server takes no files and batches ({why}): set TOKENMILL_DATA or --batch-dir")
    return None


def with_prefixes(engine: EngineConfig) -> EngineConfig:
    """Set a directory that keeps computed rows for the next start."""
    if engine.prefix_cache and engine.cache and engine.prefix_dir is None:
        folder = cache_folder() / "prefixes"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            remark(f"warning: {folder} cannot be made ({error.strerror}), so no rows are kept for the next start")
        else:
            engine = replace(engine, prefix_dir=str(folder))
    return engine
