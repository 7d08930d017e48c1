"""Tiny models whose packed copies are kept in a cache folder of the test's own."""

import pytest

from tests.tiny_models import prompt, save
from tokenmill.loader import packed_copy
from tokenmill.weights.packed import verified

LONG = prompt(60, seed=5)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache folder, in which tiny models have copies too, that are believed as soon as they are verified."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_copy, "SMALLEST", 0)
    monkeypatch.setattr(verified, "SETTLED_S", -1.0)
    return tmp_path / "cache" / "packed"


@pytest.fixture
def llama(tmp_path):
    return save("llama", tmp_path)


def replace(path, data):
    """Put another file in this one's place, which a process may have mapped and may not find cut."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def there(folder):
    return sorted(path.name for path in folder.glob("*.packed"))
