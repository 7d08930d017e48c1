"""The routes by which the server says how it is."""

import httpx2

from tests.serve.conftest import MODEL, served


def test_ping_is_health(http):
    assert http.get("/ping").json() == http.post("/ping").json() == http.get("/health").json()


def test_a_method_that_is_not_there_names_those_that_are(http):
    paths = http.get("/openapi.json").json()["paths"]
    assert set(paths["/ping"]) == {"get", "post"} and set(paths["/v1/files/{name}"]) == {"get", "delete"}
    for path, methods in paths.items():
        for method in ("OPTIONS", "PUT"):
            response = http.request(method, path.replace("{name}", "a-name"))
            assert response.status_code == 405, path
            assert response.headers["allow"].lower().split(", ") == sorted(methods), path


def test_load_counts_texts(server, http):
    assert http.get("/load").json() == {"server_load": 0}
    with server.admission.slots(3):
        assert http.get("/load").json() == {"server_load": 3}


def test_server_info_has_settings_and_no_secrets(chat_model, tmp_path):
    kept = tmp_path / "kept"
    with served(chat_model, keys=("a-secret-key",), session_dir=kept, max_queued=9) as server:
        auth = {"Authorization": "Bearer a-secret-key"}
        assert httpx2.get(f"{server.url}/server_info", timeout=60).status_code == 401
        response = httpx2.get(f"{server.url}/server_info", headers=auth, timeout=60)
    found = response.json()
    assert found["model"] == MODEL
    assert found["engine"] | {"dtype": "float32", "max_length": 96, "block_size": 8} == found["engine"]
    assert found["server"] | {"max_queued": 9, "wants_key": True, "keeps_sessions": True} == found["server"]
    assert not [secret for secret in ("a-secret-key", str(kept), str(chat_model)) if secret in response.text]


def test_an_engine_that_hangs_is_no_longer_pinged(server, http, monkeypatch):
    monkeypatch.setattr(type(server.driver), "is_hung", property(lambda _: True))
    assert http.get("/ping").status_code == http.get("/health").status_code == 503
