"""`tokenmill serve`: the model as a service that speaks OpenAI's protocol."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import read_template
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.config_file import PRESET, read_config_file
from tokenmill.cli.parser.options import CHAT_TEMPLATE, MODEL_NAME, QUIET, option
from tokenmill.cli.serve.folders import batch_folder, check_folders, session_folder
from tokenmill.cli.serve.live import check_watch
from tokenmill.cli.serve.named import serves_several
from tokenmill.cli.serve.one import serve_one, serve_replicas
from tokenmill.cli.serve.several import serve_several
from tokenmill.cli.serve.shares import MEMORY, MORE_MODELS
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.registry import TOOL_FORMATS
from tokenmill.serve.http.address import Address
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # which imports ssl
    from tokenmill.serve.start.options import Options

EXAMPLES = (
    "tokenmill serve",
    "tokenmill serve Qwen/Qwen3-0.6B --port 9000 --max-sequences 32",
    "curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"Once upon a time\"}'",
)

SERVER = "Server"
MB = 1_000_000
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
IDLE = option(
    None,
    "How long a model stays loaded after its last request, as 5m, 30s or 1h; 0: not at all, -1: for ever. Default: "
    "5m with several models; one alone stays.",
    SERVER,
    "--keep-alive",
    metavar="TIME",
)
WATCH = option(
    False,
    "Show each text that runs or waits while it does: its state, the prompt tokens that were found, tokens a second.",
    SERVER,
)
KEY_FILE = option(None, "A file with a key in each line; lines that begin with # are skipped.", SERVER)
METRICS_PREFIX = option("tokenmill", "Prefix of the names at /metrics; vllm makes dashboards of vLLM work.", SERVER)
WITHOUT = ("max_waiting",)


def command(
    context: Context,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    models: list[str] | None = MORE_MODELS,
    memory: str | None = MEMORY,
    idle: str | None = IDLE,
    host: str = option("127.0.0.1", "Address to listen at. 0.0.0.0 is every address of this machine.", SERVER),
    port: int = option(8000, "Port to listen at.", SERVER, minimum=0, maximum=65535),
    replicas: int = REPLICAS,
    name: str | None = option(None, "What clients call the model. Default: MODEL.", SERVER, "--served-model-name"),
    api_key: str | None = option(None, f"Key that clients must send. Default: {KEY}, if it is set.", SERVER),
    api_key_file: Path | None = KEY_FILE,
    max_queued: int = MAX_QUEUED,
    stall: float = STALL,
    drain: float = TIMEOUT,
    keep_alive: int = KEEP_ALIVE,
    generation_config: bool = RECOMMENDED,
    metrics_prefix: str = METRICS_PREFIX,
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
    watch: bool = WATCH,
    quiet: bool = QUIET,
) -> None:
    """Serve a model over HTTP: /v1/completions, /v1/chat/completions and /v1/responses, as OpenAI's API has them,
    /v1/messages, as Anthropic's has it, and /api/chat and /api/generate, as Ollama's has them.

    Requests run together and share the rows of prompts that begin alike. SIGTERM or Ctrl-C lets running requests end.
    """
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the hub's client, which is not imported yet, asks for it
    options_of = _options_for(api_key or os.environ.get(KEY), api_key_file)
    options, address = options_of(context.values), Address(host, port, "http" if ssl_certfile is None else "https")
    check_folders(replicas, batch_dir, lora_folder)
    check_watch(watch, replicas)
    if chat_template is not None:
        read_template(chat_template)  # refused here, before torch is imported
    if serves_several(context.values):
        has_lived = serve_several(context, options_of, options, address, quiet, watch)
    else:
        engine = replace(engine, model=model, generation_config=generation_config)
        num_sequences = engine.max_sequences if "max_sequences" in context.origins else None
        given = engine, num_sequences, chat_template, options, address, quiet
        has_lived = serve_one(*given, watch) if replicas == 1 else serve_replicas(replicas, *given)
    if not has_lived:
        sys.exit(1)


def _options_for(key: str | None, key_file: Path | None) -> Callable[[Mapping[str, Any]], "Options"]:
    """Return the function that makes the options of a server with these keys of what was given."""
    with held_interrupts():
        from tokenmill.serve.start.options import Options, read_keys
    keys = read_keys(key, key_file)
    return lambda given: Options(keys=keys, **_chosen(given))


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
