"""Conversations that clients keep by name: their rows in a file, found again after a restart or by another process.

Names are plain words, never paths, and each key has a folder of its own. A file says inside which name and key it has,
so that one that was renamed or copied is not taken for another text. A session that was restored, or just saved,
stays in memory, so a request that begins with its text finds its rows; when blocks run out, its blocks are the first
to go.
"""

import re
from pathlib import Path

from tokenmill.cache.header import SERIALISED, begins_with
from tokenmill.engine.engine import Engine
from tokenmill.engine.session import Session
from tokenmill.errors import SnapshotError
from tokenmill.memory.bounded_folder import BoundedFolder
from tokenmill.serve.http.errors import ApiError, Json

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
FILES = re.compile(rf"([0-9a-f]+|open)/{NAME.pattern}\.kv")
KEYWORD = re.compile(r"\b([a-z]+)='(\w+)'")
MAX_HELD = 64


class Sessions:
    """The sessions of one server, in a directory. Its methods are called in the engine's thread."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine, self._directory = engine, directory
        BoundedFolder(directory, "sessions", FILES, _is_saved, in_folders=True).remove_leftovers()
        self._held: dict[Path, Session] = {}  # the latest used last

    def begin(self, tenant: bytes, name: str, tokens: list[int]) -> Session:
        """Begin a text that `save` can keep under that name, once its rows are there."""
        self._path(tenant, name)
        return self._engine.session(tokens, salt=tenant)

    def save(self, tenant: bytes, name: str, session: Session) -> Json:
        """Keep a text under a name, in the place of the text that had it."""
        path = self._path(tenant, name)
        session.notes = _notes(tenant, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path.exists() and not _is_saved(path):
                raise SnapshotError(f"in its place lies a file that is no session: {path}")
            size = session.save(path)
        except (OSError, SnapshotError) as error:
            session.close()
            raise ApiError(507, f"the session cannot be saved: {error}", code="not_saved") from None
        self._hold(path, session)
        return {"name": name, "tokens": len(session), "bytes": size}

    def open(self, tenant: bytes, name: str) -> Session:
        """Open a saved text, whose rows are to be loaded."""
        path = self._saved(tenant, name)
        try:
            session = self._engine.open_session(path, salt=tenant)
        except SnapshotError as error:
            raise ApiError(409, _for_server(str(error)), "name", "session_unusable") from None
        if session.notes != _notes(tenant, name):
            session.close()
            raise ApiError(409, f"{path} was saved under another name or key", "name", "session_unusable")
        return session

    def hold(self, tenant: bytes, name: str, session: Session) -> Json:
        """Keep a text whose rows have been loaded in memory, so that requests which begin with it find them."""
        self._hold(self._path(tenant, name), session)
        return {"name": name, "tokens": len(session), "cached_tokens": session.num_cached}

    def erase(self, tenant: bytes, name: str) -> Json:
        """Forget a text, its file too."""
        held = self._held.pop(self._path(tenant, name), None)
        if held is not None:
            held.close()
        path = self._saved(tenant, name)
        if not _is_saved(path):
            raise ApiError(409, f"{path} is no session: it is not deleted", "name", "session_unusable")
        path.unlink(missing_ok=True)
        return {"name": name, "erased": True}

    def _hold(self, path: Path, session: Session) -> None:
        old = self._held.pop(path, None)
        self._held[path] = session
        for each in [old, *([self._held.pop(next(iter(self._held)))] if len(self._held) > MAX_HELD else [])]:
            if each is not None:
                each.close()

    def _saved(self, tenant: bytes, name: str) -> Path:
        if (path := self._path(tenant, name)).exists():
            return path
        raise ApiError(404, f"there is no session {name!r}", "name", "session_not_found")

    def _path(self, tenant: bytes, name: str) -> Path:
        return session_path(self._directory, tenant, name)


def session_path(directory: Path, tenant: bytes, name: str) -> Path:
    """Return where the session of a key lies. ApiError for what is no name of one."""
    if not NAME.fullmatch(name):
        allowed = "letters, digits, '.', '_' and '-', at most 64, and no '.' first"
        raise ApiError(400, f"{name!r} is no name of a session: {allowed}", "name")
    return directory / (tenant.hex() or "open") / f"{name}.kv"


def _notes(tenant: bytes, name: str) -> Json:
    """Return the notes by which a file says whose session it is."""
    return {"session": name, "key": tenant.hex()}


def _is_saved(path: Path) -> bool:
    """Return whether a session was saved there, even if the file is damaged."""
    return begins_with(path, SERIALISED)


def _for_server(message: str) -> str:
    """Word a message of check_compatible for one who starts a server, without Python's keywords."""
    wanted = message.replace("load the model with", "start the server with")
    return KEYWORD.sub(r"--\1 \2", wanted.removesuffix(", or open it with convert=True"))
