"""A hub on 127.0.0.1: the three requests that huggingface_hub makes to list a repository and to fetch its files."""

import json
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves `repositories` {owner/name: {file: bytes}}; use as a context manager.

    fetched lists the files that were sent. `cut` names files whose first answer breaks off in the middle; `lies` maps
    files to the sha256 that the listing claims. status: what
    every request is refused with, if any. tokens: what came as Authorization, None where nothing did.
    """

    def __init__(self, repositories):
        self.repositories, self.fetched, self.ranges, self.cut, self.lies = repositories, [], [], set(), {}
        self.tokens, self.status = set(), None
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def listing(self, repository):
        siblings = []
        for name, content in self.repositories[repository].items():
            entry = {"rfilename": name, "size": len(content)}
            if name.endswith((".safetensors", ".bin", ".gguf")):
                digest = self.lies.get(name, sha256(content).hexdigest())
                entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 100}
            siblings.append(entry)
        return {"id": repository, "sha": COMMIT, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        parts = self.path.split("?")[0].strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repository = "/".join(parts[2:4] if is_api else parts[:2])
        if self.hub.status is not None:
            return self.send(self.hub.status, b"", {})
        if repository not in self.hub.repositories:  # or it is no repository that the client asks about
            return self.refuse(404, "RepoNotFound")
        self.hub.tokens.add(self.headers.get("Authorization"))
        revision = parts[5] if is_api and len(parts) > 5 else "main" if is_api else parts[3]
        if revision not in ("main", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        if is_api:
            return self.send(
                200, json.dumps(self.hub.listing(repository)).encode(), {"Content-Type": "application/json"}
            )
        return self.file("/".join(parts[4:]), repository, body)

    def file(self, name, repository, body):
        content = self.hub.repositories[repository].get(name)
        if content is None:
            return self.refuse(404, "EntryNotFound")
        digest = sha256(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not body:
            return self.send(200, b"", headers | {"Content-Length": str(len(content))})
        self.hub.fetched.append(name)
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append((name, wanted))
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self.send(206, content[start:], headers)
        if name in self.hub.cut:
            self.hub.cut.remove(name)
            headers["Content-Length"] = str(len(content))
            self.close_connection = True
            return self.send(200, content[: len(content) // 2], headers)
        return self.send(200, content, headers)

    def refuse(self, status, code):
        self.send(status, b"", {"X-Error-Code": code})

    def send(self, status, content, headers):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass
