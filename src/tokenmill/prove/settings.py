"""The settings of one check: the server, and how much may be sent to it."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.bench.address import check_address, check_key, endpoint
from tokenmill.errors import ConfigError
from tokenmill.registry import PROOFS, either

MAX_SEED = 2**31 - 1  # what every server takes, beside one more for each of several texts


@dataclass(frozen=True)
class Settings:
    """Settings of one check, checked when made; errors name the option of `tokenmill prove`.

    requests, comparisons, time_s: the check ends at the first of these bounds. request_limit_s: a request that takes
    longer has failed. patience_s: how long, in all, one request waits for a server that answers 429 or 503. tolerance:
    how far log-probabilities may differ. cases: names of PROOFS; an empty tuple is all of them.
    """

    url: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    requests: int = 2000
    comparisons: int | None = None
    time_s: float = 600.0
    request_limit_s: float = 120.0
    patience_s: float = 60.0
    concurrency: int = 8
    max_tokens: int = 32
    seed: int = 0
    logprobs: bool = False
    tolerance: float = 0.0
    cases: tuple[str, ...] = ()
    restart: str | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        check_address("URL", self.url, "--key")
        check_key("--key", self.key)
        for option in ("requests", "comparisons", "max_tokens"):
            value = getattr(self, option)
            _check(option, value, value is None or value >= 1, "a whole number of at least 1")
        _check("concurrency", self.concurrency, self.concurrency >= 2, "at least 2: alone is no crowd")
        _check("seed", self.seed, 0 <= self.seed <= MAX_SEED, f"a whole number from 0 to {MAX_SEED}")
        for option, value in (("time", self.time_s), ("request_timeout", self.request_limit_s)):
            _check(option, value, 0 < value < math.inf, "seconds above 0")
        _check("tolerance", self.tolerance, 0 <= self.tolerance < math.inf, "a number of at least 0")
        _check("tolerance", self.tolerance, self.logprobs or not self.tolerance, "only with --logprobs")
        for name in self.cases:
            _check("case", name, name in PROOFS, f"use {either(list(PROOFS))}")
        named = "restart" not in self.cases or self.restart is not None
        _check("case", "restart", named, "only with --restart COMMAND, which restarts the server")

    @property
    def names(self) -> tuple[str, ...]:
        """The cases to run, in the order of the table."""
        return tuple(name for name in PROOFS if not self.cases or name in self.cases)

    def at(self, path: str) -> str:
        """Return the address of an endpoint."""
        return endpoint(self.url, path)


def _check(option: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise ConfigError("--" + option.replace("_", "-"), value, allowed)
