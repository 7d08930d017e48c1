"""The options of `tokenmill serve`, and keys out of a file."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.errors import ConfigError
from tokenmill.registry import TOOL_FORMATS
from tokenmill.serve.http.access import FORMATS
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.value_reader import check_choice


@dataclass(frozen=True)
class Options:
    """The options of a server. name: of the model, to clients. keys: clients send one of them, if there are any.

    max_queued: sequences that may wait. drain_s: what running requests get after SIGTERM. keep_alive_s: how long a
    connection without a request stays open. is_strict: unknown fields of requests are refused. max_body: bytes.
    metrics_prefix: of the names that /metrics gives. log_format: of the line for each request. certificate, key_file:
    for TLS. session_dir: where texts are kept by name. stall_s: the longest wait of a stream while prompts are
    computed. seed: of requests that name none; None takes a fresh one for each. batch_dir: where files and batches are
    kept; without it they are refused. max_file: bytes of one file that a client sends. max_stored: bytes of all files
    of all clients, beyond which further files are refused. tool_format: how the model writes calls of functions; auto:
    as its chat template says. record: a file to which the requests are appended. lora_folder: clients may load adapters
    that lie in it; None: none. may_go: the model is one of several, and unloaded when it is idle.
    """

    name: str
    keys: tuple[str, ...] = field(default=(), repr=False)
    max_queued: int = 64
    drain_s: float = 30.0
    keep_alive_s: int = 75
    is_strict: bool = False
    max_body: int = 4_000_000
    metrics_prefix: str = "tokenmill"
    log_format: str = "text"
    certificate: Path | None = None
    key_file: Path | None = None
    session_dir: Path | None = None
    stall_s: float = 0.25
    seed: int | None = None
    batch_dir: Path | None = None
    max_file: int = 200_000_000
    max_stored: int = 10_000_000_000
    tool_format: str = "auto"
    record: Path | None = None
    lora_folder: Path | None = None
    may_go: bool = False

    def __post_init__(self) -> None:
        SamplingParams(seed=self.seed)  # refuses one out of range
        check_choice("log_format", self.log_format, FORMATS)
        check_choice("tool_format", self.tool_format, ("auto", *TOOL_FORMATS))
        if self.key_file is not None and self.certificate is None:
            raise ConfigError("ssl_keyfile", str(self.key_file), "given with --ssl-certfile", "--ssl-keyfile")
        if self.certificate is not None:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key_file)
            except (OSError, ssl.SSLError) as error:
                why = error.strerror or str(error)
                allowed = f"a certificate that can be read, and its private key ({why})"
                raise ConfigError("ssl_certfile", str(self.certificate), allowed, "--ssl-certfile") from None


def read_keys(given: str | None, file: Path | None) -> tuple[str, ...]:
    """Read the keys of clients, one that was given and the keys of a file."""
    found = [] if given is None else [("--api-key", given)]
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError("api_key_file", str(file), f"a file that can be read ({why})", "--api-key-file") from None
        found += [(str(file), line) for line in lines if line and not line.startswith("#")]
        if len(found) == (given is not None):
            raise ConfigError("api_key_file", str(file), "a file with a key in a line", "--api-key-file")
    for where, key in found:
        if not key or not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError("api_key", "…", "printable ASCII without spaces, since it travels in a header", where)
    return tuple(key for _, key in found)
