"""The check: each request of a log is sent again, and what the server says that it found is compared with what it had.

Every check has a salt of its own, so that nothing that the server computed for somebody else is found.
"""

import json
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

import httpx2

from tokenmill.bench.address import check_address, check_key, headers_of
from tokenmill.errors import TokenmillError
from tokenmill.prove.agent.log import Recorded
from tokenmill.prove.agent.outcome import AgentOutcome, Parting, Turn
from tokenmill.prove.agent.routes import ROUTES

MAX_REFUSAL = 300  # characters of a server's own words that are shown


@dataclass(frozen=True)
class AgentSettings:
    """Settings of a check. url: of the server. model: asked for, not the recorded one. num_new: tokens of each
    answer.
    """

    url: str
    key: str | None = None
    model: str | None = None
    num_new: int = 1
    limit_s: float = 600.0

    def __post_init__(self) -> None:
        check_address("URL", self.url, "--key")
        check_key("--key", self.key)


class AgentCheck:
    """A check that sends the requests of a log, one after the other."""

    def __init__(self, settings: AgentSettings, listen: Callable[[Turn], None] = lambda _: None) -> None:
        self._settings, self._listen = settings, listen
        self._salt = secrets.token_hex(8)
        self._texts: list[tuple[int, list[int], int]] = []  # line, ids of prompt and answer, length of the prompt
        verify: Any = httpx2.create_ssl_context(trust_env=False) if settings.url.startswith("https") else False
        self._http = httpx2.Client(verify=verify, trust_env=False, timeout=settings.limit_s)

    def run(self, log: List[Recorded]) -> AgentOutcome:
        """Send all of them; TokenmillError if the server cannot be reached."""
        outcome = AgentOutcome()
        with self._http:
            for recorded in log:
                if recorded.path not in ROUTES:
                    outcome.skipped[recorded.path] = outcome.skipped.get(recorded.path, 0) + 1
                    continue
                outcome.turns.append(turn := self._turn(recorded))
                self._listen(turn)
        return outcome

    def _turn(self, recorded: Recorded) -> Turn:
        route, turn = ROUTES[recorded.path], Turn(recorded)
        more = {"cache_salt": self._salt, "return_token_ids": True}
        body = route.body(recorded.body, self._settings.model, self._settings.num_new, more)
        begun_s = time.perf_counter()
        answer = self._post(turn, body)
        turn.seconds = time.perf_counter() - begun_s
        if answer is not None:
            turn.usage = route.usage(answer)
            self._compare(turn, _ids(answer.get("prompt_token_ids")), _answer_ids(answer))
        return turn

    def _post(self, turn: Turn, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        address = f"{self._settings.url.rstrip('/').removesuffix('/v1')}{turn.recorded.path}"
        key = {"x-api-key": self._settings.key} if self._settings.key else {}
        headers = {**headers_of(self._settings.key), **key, **turn.recorded.headers}
        try:
            answer = self._http.post(address, content=json.dumps(body).encode(), headers=headers)
        except httpx2.TimeoutException:
            raise TokenmillError(f"{address} gave no answer within {self._settings.limit_s:g} s: --timeout") from None
        except httpx2.HTTPError as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise TokenmillError(f"{address} cannot be asked: {why}; is `tokenmill serve` running there?") from None
        try:
            document = answer.json()
        except ValueError:
            document = None
        if answer.status_code == 200 and isinstance(document, Mapping):
            return document
        turn.refusal = f"HTTP {answer.status_code}: {_words(document, answer.text)[:MAX_REFUSAL]}"
        return None

    def _compare(self, turn: Turn, prompt: list[int] | None, answer: list[int]) -> None:
        if prompt is None:
            return
        commons = [(common_length(prompt, ids), number, length) for number, ids, length in self._texts]
        turn.num_before, number, length = max(commons, default=(0, 0, 0))
        if number and turn.num_before < min(length, len(prompt)):
            turn.parting = Parting(number, turn.num_before, length)
        self._texts.append((turn.recorded.number, [*prompt, *answer], len(prompt)))


def common_length(one: List[int], other: List[int]) -> int:
    """Count the tokens that both begin with."""
    longest = min(len(one), len(other))
    return bisect_left(range(longest), 1, key=lambda at: one[: at + 1] != other[: at + 1])


def _ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(each) is int for each in value) else None


def _answer_ids(answer: Mapping[str, Any]) -> list[int]:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else answer
    return _ids(choice.get("token_ids")) or []


def _words(document: Any, text: str) -> str:
    error = document.get("error") if isinstance(document, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) else " ".join(text.split())
