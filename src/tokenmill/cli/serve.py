"""`tokenmill serve`: the model as a service that speaks OpenAI's protocol."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.cli.command import is_given
from tokenmill.cli.display import progress_on_stderr, remark
from tokenmill.cli.imports import uninterrupted
from tokenmill.cli.models import load_engine
from tokenmill.cli.options import Model, Quiet, examples, with_settings
from tokenmill.config import DEFAULT_MODEL, EngineConfig, ResolvedConfig
from tokenmill.errors import TokenmillError
from tokenmill.hub.download import cache_folder

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill serve",
    "tokenmill serve Qwen/Qwen3-0.6B --port 9000 --max-sequences 32",
    "curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"Once upon a time\"}'",
)

SERVER = "Server"
SEQUENCES = 16
KEY = "TOKENMILL_API_KEY"
HELP = {
    "max_sequences": f"Sequences that run together; others wait. Default: {SEQUENCES}.",
    "prefix_dir": "Keep shared blocks in this directory for the next start. Default: in the cache folder of tokenmill.",
    "max_length": "Longest text in tokens, prompt and answer. Default: the model's context, at most 2048.",
}


def _option(name: str, text: str, **more: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel=SERVER, **more)


Host = Annotated[str, _option("--host", "Address to listen at. 0.0.0.0 is every one of this machine.")]
Port = Annotated[int, _option("--port", "Port to listen at.", min=0, max=65535)]
Name = Annotated[str | None, _option("--served-model-name", "What clients call the model. Default: MODEL.")]
Key = Annotated[str | None, _option("--api-key", f"Key that clients must send. Default: {KEY}, if it is set.")]
KeyFile = Annotated[Path | None, _option("--api-key-file", "A key in each line; lines that begin with # are none.")]
MaxQueued = Annotated[
    int, _option("--max-queued-requests", "Sequences that may wait; more are refused with 429.", min=0)
]
Timeout = Annotated[float, _option("--shutdown-timeout", "Seconds that running requests get after SIGTERM.", min=0)]
Recommended = Annotated[
    bool,
    _option(
        "--generation-config/--no-generation-config",
        "Requests that say nothing use the sampling settings that the model's files recommend.",
    ),
]
Prefix = Annotated[str, _option("--metrics-prefix", "Of the names at /metrics; vllm makes dashboards of vLLM work.")]
LogFormat = Annotated[str, _option("--log-format", "Of the line on stderr for each request: text or json.")]
Certificate = Annotated[Path | None, _option("--ssl-certfile", "Certificate, to serve https.")]
CertificateKey = Annotated[Path | None, _option("--ssl-keyfile", "Its private key, if it is in another file.")]
SessionDir = Annotated[
    Path | None,
    _option("--session-dir", "Where clients keep texts by name. Default: in the cache folder of tokenmill."),
]
Strict = Annotated[bool, _option("--strict", "Refuse unknown fields of requests.")]


@with_settings(without=("max_waiting",), words=HELP, engine=EngineConfig)
def command(
    context: typer.Context,
    engine: EngineConfig,
    model: Model = DEFAULT_MODEL,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    name: Name = None,
    api_key: Key = None,
    api_key_file: KeyFile = None,
    max_queued: MaxQueued = 64,
    drain: Timeout = 30.0,
    generation_config: Recommended = True,
    metrics_prefix: Prefix = "tokenmill",
    log_format: LogFormat = "text",
    ssl_certfile: Certificate = None,
    ssl_keyfile: CertificateKey = None,
    session_dir: SessionDir = None,
    strict: Strict = False,
    quiet: Quiet = False,
) -> None:
    """Serve a model over HTTP: /v1/completions and /v1/chat/completions, as OpenAI's API has them.

    Requests run together and share the rows of prompts that begin alike. SIGTERM or Ctrl-C lets running requests end.
    """
    with uninterrupted():
        try:
            from tokenmill.serve.options import Options, read_keys
            from tokenmill.serve.run import Address, Server, is_loopback, listen
        except ModuleNotFoundError as error:
            raise TokenmillError(f"serve needs {error.name}: pip install 'tokenmill[serve]'") from None
    keys = read_keys(api_key or os.environ.get(KEY), api_key_file)
    options = Options(
        name=name or model,
        keys=keys,
        max_queued=max_queued,
        drain_s=drain,
        is_strict=strict,
        metrics_prefix=metrics_prefix,
        log_format=log_format,
        certificate=ssl_certfile,
        key_file=ssl_keyfile,
        session_dir=session_dir or cache_folder() / "sessions",
    )
    address = Address(host, port, "http" if ssl_certfile is None else "https")
    taken = listen(address)
    engine = replace(engine, model=model, generation_config=generation_config)
    with progress_on_stderr(quiet) as progress:
        loaded = load_engine(_for_many(engine, is_given(context, "max_sequences")), progress)
    if not (keys or is_loopback(taken)):
        remark(f"warning: {address.url} accepts requests without an API key from other machines; set --api-key-file")
    if not quiet:
        remark(_greeting(loaded.config, loaded.program_name, options.name, address.url))
    if not Server(loaded, taken, options, None if quiet else remark).serve_to_end():
        raise typer.Exit(1)


def _for_many(engine: EngineConfig, is_limited: bool) -> EngineConfig:
    """The settings with places for several, and a directory that keeps what was computed."""
    if not is_limited:
        engine = replace(engine, max_sequences=SEQUENCES)
    if engine.prefix_cache and engine.cache and engine.prefix_dir is None:
        folder = cache_folder() / "prefixes"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            remark(f"warning: {folder} cannot be made ({error.strerror}), so no rows are kept for the next start")
        else:
            engine = replace(engine, prefix_dir=str(folder))
    return engine


def _greeting(config: ResolvedConfig, program: str, name: str, url: str) -> str:
    return (
        f"{name} at {url}: {config.max_sequences} sequences of up to {config.max_length} tokens, "
        f"{config.cache_tokens} in the cache, {program} {config.dtype}; Ctrl-C ends"
    )
