"""Law 14 through the gate: what is tried on one server (tests/serve/loop/test_everything.py), on three replicas of
which each loses every twentieth message and with it the request, and one or another is always to end.
"""

import random
import time

import pytest

from tests.empty import check_empty
from tests.scale.fakes import FakeFleet, at_socket
from tests.serve.loop.test_everything import KEYS, SCARCE, SECONDS, try_everything
from tests.speculate.test_multi_step import needs_native
from tests.word_model import save_chat_model
from tokenmill import load
from tokenmill.scale import relay


@needs_native
@pytest.mark.slow
def test_every_text_is_that_of_a_quiet_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "MAX_LOST", 100)
    model = save_chat_model(tmp_path / "model")
    quiet = load(model, dtype="float32", max_length=96, speculate="off", prefix_cache=False, threads=1)
    on_disk = {"prefix_dir": str(tmp_path / "blocks"), "suffix_dir": str(tmp_path / "texts"), "suffix_limit": 1}
    options = {"keys": KEYS, "session_dir": tmp_path / "sessions"}
    fleet = FakeFleet(model, 3, {**SCARCE, **on_disk, "draft_model": "q8"}, **options)
    chance, num_lost = random.Random(3), []

    def on_part(call, replica, message):
        fleet.leaving = {chance.choice(sorted(fleet.mills))} if chance.random() < 0.05 else fleet.leaving
        is_lost = chance.random() < 0.05
        num_lost.extend([replica] * is_lost)
        return is_lost

    fleet.on_part = on_part
    with at_socket(fleet, **options) as (_, url):
        try_everything(url, quiet, max(SECONDS, 5))
        while len(num_lost) <= 10:  # on a slow machine
            try_everything(url, quiet, 5)
        for mill in fleet.mills.values():
            served = mill._served
            while served.admission.num_open:
                time.sleep(0.01)
            for session in list(served.service.sessions._held.values()):
                session.close()
            check_empty(served.driver.core)
