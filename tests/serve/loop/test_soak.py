"""A server that runs for long: memory, descriptors and blocks stay what they were.

TOKENMILL_SOAK_SECONDS says how long; the short form only shows that the test works.
"""

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.empty import check_empty
from tests.serve.conftest import served
from tests.serve.loop.test_everything import BEGINNINGS, KEYS
from tests.serve.loop.test_load import resident_bytes

SECONDS = float(os.environ.get("TOKENMILL_SOAK_SECONDS", "6"))
CLOSED = 0
MOST_SLOPE = 1_000_000 / 60  # bytes a second
SETTINGS = {"block_size": 4, "cache_tokens": 200, "max_sequences": 4, "max_step_tokens": 32, "threads": 1}


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


class User:
    """Mixed work: streams and whole answers, 1 % of them left, 1 % of them bad."""

    def __init__(self, number, url):
        self.random, self.statuses = random.Random(number), {}
        self.http = httpx2.Client(
            base_url=url, headers={"Authorization": f"Bearer {KEYS[number % 2]}"}, timeout=900, trust_env=False
        )

    def work(self, ends_s):
        with self.http:
            while time.monotonic() < ends_s or self.statuses.get(200, 0) < 3:
                try:
                    status = self.ask(self.random.random())
                except httpx2.ReadError:  # a connection that was idle for long was closed as it was used again
                    status = CLOSED
                self.statuses[status] = self.statuses.get(status, 0) + 1

    def ask(self, chance):
        words = " ".join(f"w{self.random.randrange(200)}" for _ in range(self.random.randint(0, 20)))
        body = {"prompt": f"{self.random.choice(BEGINNINGS)} {words}", "max_tokens": self.random.randint(1, 30)}
        if chance < 0.01:
            return self.http.post("/v1/completions", json=body | {"temperature": -1}).status_code
        if chance < 0.4:
            with self.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                for line in stream.iter_lines():
                    if chance < 0.02 or (line.startswith("data: {") and json.loads(line[6:]).get("error")):
                        break
                return stream.status_code
        return self.http.post("/v1/completions", json=body).status_code


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc")
def test_nothing_grows(chat_model, tmp_path):
    on_disk = {"prefix_dir": str(tmp_path / "blocks"), "prefix_limit": 1, "suffix_dir": str(tmp_path / "texts")}
    with served(chat_model, SETTINGS | on_disk, keys=KEYS, session_dir=tmp_path / "sessions") as server:
        users = [User(number, server.url) for number in range(8)]
        begun_s = time.monotonic()
        threads = [threading.Thread(target=user.work, args=(begun_s + SECONDS,)) for user in users]
        for thread in threads:
            thread.start()
        seen = []
        while time.monotonic() < begun_s + SECONDS:
            time.sleep(SECONDS / 60)
            seen.append((time.monotonic(), resident_bytes(), descriptors()))
        for thread in threads:
            thread.join(900)
        late = seen[len(seen) // 3 :]  # after caches are full and code is loaded
        seconds, grown = late[-1][0] - late[0][0], late[-1][1] - late[0][1]
        kinds = (200, 400, 429, 500, 503, CLOSED)
        statuses = {status: sum(user.statuses.get(status, 0) for user in users) for status in kinds}
        slope = f"{grown / seconds * 60 / 1e6:.3f} MB a minute"
        sys.stderr.write(f"\n{statuses}, {slope}, descriptors {late[0][2]} to {late[-1][2]}\n")
        assert statuses[200] > 20 and not statuses[500] and not statuses[503]
        assert statuses[CLOSED] <= 0.01 * statuses[200]
        assert grown < max(MOST_SLOPE * seconds, 30_000_000 * (SECONDS < 60))
        assert late[-1][2] <= late[0][2] + 10
        check_empty(server.driver.core)
