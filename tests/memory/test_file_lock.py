"""A lock by a file: who has it, how long another waits, and what happens when the file is deleted meanwhile."""

import errno
import fcntl
import os

import pytest

from tokenmill.memory import file_lock
from tokenmill.memory.file_lock import NO_LOCKS, locked, locked_file


def hold(path):
    """The lock as another process would have it: by another open file."""
    other = path.open("a+b")
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other.close()
        raise
    return other


class Clock:
    """A clock that only sleeping moves; `at` is called with the time after each sleep."""

    def __init__(self, at=lambda _: None):
        self.now, self.sleeps, self.at = 100.0, [], at

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += 0.5
        self.at(self.now)


def test_the_lock_is_held_within_the_context_alone(tmp_path):
    path = tmp_path / "lock"
    with locked(path) as has_it:
        assert has_it is True
        with pytest.raises(BlockingIOError):
            hold(path)
        with locked(path) as also:
            assert also is False
    hold(path).close()


def test_it_is_released_after_an_error(tmp_path):
    with pytest.raises(ValueError, match="x"), locked(tmp_path / "lock"):
        raise ValueError("x")
    hold(tmp_path / "lock").close()


def test_it_is_released_though_a_child_still_has_the_file_open(tmp_path):
    """A forked child shares the open file, so that closing it alone would leave the lock held."""
    with locked_file(tmp_path / "lock") as lock:
        childs = os.dup(lock.fileno())
    try:
        hold(tmp_path / "lock").close()
    finally:
        os.close(childs)


def test_the_file_is_given_as_it_is(tmp_path):
    (tmp_path / "lock").write_bytes(b"kept")
    with locked_file(tmp_path / "lock") as lock:
        lock.seek(0)
        assert lock.read() == b"kept"


def test_without_waiting_nobody_sleeps(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(file_lock, "time", clock)
    with hold(tmp_path / "lock"), locked_file(tmp_path / "lock") as lock:
        assert lock is None
    assert clock.sleeps == []


def test_another_is_waited_for_until_the_time_is_over(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(file_lock, "time", clock)
    with hold(tmp_path / "lock"), locked_file(tmp_path / "lock", 1.0) as lock:
        assert lock is None
    assert clock.sleeps == [0.001, 0.001]


def test_the_lock_is_taken_when_the_other_lets_go(tmp_path, monkeypatch):
    other = hold(tmp_path / "lock")
    clock = Clock(lambda _: other.close())
    monkeypatch.setattr(file_lock, "time", clock)
    with locked_file(tmp_path / "lock", 1.0) as lock:
        assert lock is not None
    assert clock.sleeps == [0.001]


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made anew"])
def test_a_file_that_its_holder_deleted_is_made_anew(tmp_path, monkeypatch, again):
    """Else two could have it: one by the deleted file, and one by the file that now has its name."""
    path, other = tmp_path / "lock", hold(tmp_path / "lock")

    def end(_):
        path.unlink()
        if again:
            path.write_bytes(b"new")
        other.close()

    monkeypatch.setattr(file_lock, "time", Clock(end))
    with locked_file(path, 1.0) as lock:
        assert os.fstat(lock.fileno()).st_ino == path.stat().st_ino
        assert path.read_bytes() == (b"new" if again else b"")
        with pytest.raises(BlockingIOError):
            hold(path)


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "gone" / "lock"):
        pass


def test_a_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "none")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match="none") as error, locked(tmp_path / "lock"):
        pass
    assert error.value.errno in NO_LOCKS and set(NO_LOCKS) == {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
