"""The store of texts: found after a restart, within its limit, and never a guess that no text has."""

import fcntl
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tokenmill.memory.atomic_file import beside
from tokenmill.speculate import suffix_store
from tokenmill.speculate.suffix_store import SuffixStore
from tokenmill.speculate.text_index import NGRAMS, WINDOW

VOCABULARY = 1000
LIMIT = 1_000_000
SMALL = 40_000  # a limit by which a few hundred tokens fill a segment
TEXT = [5, 6, 7, 8, 9, 10]
SHORTEST = NGRAMS[-1]


def opened(folder, limit=LIMIT, identity="model", vocab_size=VOCABULARY):
    return SuffixStore(folder, identity, vocab_size, limit)


def stored(folder, *texts, **how):
    """What a process does that produces these texts."""
    store = opened(folder, **how)
    for text in texts:
        store.add(text)
    store.close()


def files(folder):
    return sorted(folder.glob("*/*.texts"), key=lambda path: path.name)


def numbers(seed, count=100):
    """A text that shares no n-gram with that of another seed, if both are short."""
    numbers = random.Random(seed)
    return [numbers.randrange(VOCABULARY) for _ in range(count)]


def occurrences(texts, tail, size):
    """Where the last tokens of `tail` stand in the texts with something behind them: text and place behind."""
    wanted = tail[len(tail) - size :]
    return [(text, at) for text in texts for at in range(size, len(text)) if text[at - size : at] == wanted]


def check_guess(texts, tail, guessed, matched):
    """Nothing, or what really followed."""
    if guessed:
        assert matched >= SHORTEST
        assert any(text[at : at + len(guessed)] == guessed for text, at in occurrences(texts, tail, matched))


# ---- what is found


def test_a_restart_finds_what_was_added(tmp_path):
    stored(tmp_path, TEXT)
    assert opened(tmp_path).guess([1, 2, 5, 6, 7], 2) == ([8, 9], 3)


def test_the_first_texts_of_a_folder_are_told(tmp_path, caplog):
    """Where they lie, how many there may be, and how to have none; later ones are not told."""
    caplog.set_level("INFO", "tokenmill")
    for seed in (1, 2):
        stored(tmp_path, numbers(seed))
        [said] = caplog.messages
    assert str(tmp_path) in said and "without suffix_dir no text is kept" in said


def test_a_text_is_found_before_it_is_on_disk(tmp_path):
    store = opened(tmp_path)
    store.add(TEXT)
    assert not files(tmp_path)
    assert store.guess([5, 6, 7], 8) == ([8, 9, 10], 3)


def test_a_store_that_is_not_closed_writes_when_it_goes(tmp_path):
    store = opened(tmp_path)
    store.add(TEXT)
    del store
    assert opened(tmp_path).guess([5, 6, 7], 1) == ([8], 3)


def test_a_process_writes_when_it_ends(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tokenmill.speculate.suffix_store import SuffixStore;"
        f"store = SuffixStore(Path(sys.argv[1]), 'model', {VOCABULARY}, {LIMIT}); store.add({TEXT}); sys.exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 3
    assert opened(tmp_path).guess([5, 6, 7], 1) == ([8], 3)


def test_a_closed_store_says_nothing(tmp_path):
    store = opened(tmp_path)
    store.add(TEXT)
    store.close()
    store.close()
    store.add(TEXT)
    assert store.guess([5, 6, 7], 1) == ([], 0)


def test_nothing_added_leaves_nothing(tmp_path):
    stored(tmp_path)
    assert not list(tmp_path.iterdir())
    assert opened(tmp_path).guess([], 4) == opened(tmp_path).guess(TEXT, 4) == ([], 0)


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_the_longest_match_and_what_followed_it_most(restarts, tmp_path):
    for seed in range(25):
        choice, texts, folder = random.Random(seed), [], tmp_path / str(seed)
        store = opened(folder)
        for _ in range(4):
            texts.append([choice.randrange(9) for _ in range(choice.randrange(1, 40))])
            store.add(texts[-1])
            if len(texts) <= restarts:
                store.close()
                store = opened(folder)
        for _ in range(20):
            text = choice.choice(texts)
            tail = [choice.randrange(9), *text[: choice.randrange(len(text) + 1)]]
            guessed, matched = store.guess(tail, 5)
            longest = next((size for size in range(len(tail), 0, -1) if occurrences(texts, tail, size)), 0)
            assert matched == (longest if longest >= SHORTEST else 0)
            check_guess(texts, tail, guessed, matched)
            if guessed:
                following = [text[at] for text, at in occurrences(texts, tail, matched)]
                assert following.count(guessed[0]) == max(map(following.count, following))


def test_the_most_frequent_next_token_is_followed_and_of_several_the_latest(tmp_path):
    stored(tmp_path, [1, 2, 3, 4])
    store = opened(tmp_path)
    assert store.guess([1, 2, 3], 1) == ([4], 3)
    store.add([1, 2, 3, 5])
    assert store.guess([1, 2, 3], 1) == ([5], 3)
    store.add([9, 1, 2, 3, 4])
    store.add([1, 2, 3, 6])
    assert store.guess([1, 2, 3], 1) == ([4], 3)


def test_no_match_and_no_guess_goes_over_the_end_of_a_text(tmp_path):
    store = opened(tmp_path)
    store.add([1, 2, 3])
    store.add([4, 5, 6])
    assert store.guess([1, 2, 3], 5) == store.guess([2, 3, 4], 5) == store.guess([4, 5, 6], 5) == ([], 0)
    store.add([3, 4, 5, 6, 7])
    assert store.guess([2, 3, 4, 5], 5) == ([6, 7], 3)


def test_a_match_longer_than_the_window(tmp_path):
    text = numbers(1, 3 * WINDOW)
    stored(tmp_path, text)
    assert opened(tmp_path).guess(text[:-4], 9) == (text[-4:], WINDOW)
    assert opened(tmp_path).guess(text[:-4], 0) == ([], WINDOW)


def test_a_text_longer_than_a_segment_is_kept_in_pieces(tmp_path):
    text = numbers(2, 1500)
    stored(tmp_path, text, limit=200_000)
    assert len(files(tmp_path)) > 1
    store = opened(tmp_path, limit=200_000)
    found = [store.guess(text[:end], 1)[0] == [text[end]] for end in range(WINDOW, 1500)]
    assert sum(found) > 0.9 * len(found)


def test_another_identity_finds_nothing(tmp_path):
    stored(tmp_path, TEXT)
    stored(tmp_path, [5, 6, 7, 1], identity="other")
    assert opened(tmp_path, identity="third").guess([5, 6, 7], 1) == ([], 0)
    assert opened(tmp_path, identity="other").guess([5, 6, 7], 1) == ([1], 3)
    assert opened(tmp_path).guess([5, 6, 7], 1) == ([8], 3)


# ---- token ids


@pytest.mark.parametrize("bad", [VOCABULARY, -1, 2**31, -(2**31), 2**70, 1.0, "5", None])
def test_a_text_with_what_is_no_token_id_is_left_out(bad, tmp_path):
    store = opened(tmp_path)
    with pytest.warns(UserWarning, match="token ids are from 0 to 999"):
        store.add([1, 2, 3, 4, bad])
    store.add([1, 2, 3, 4, bad])  # said once
    store.add(TEXT)
    assert store.guess([1, 2, 3], 1) == ([], 0)
    assert store.guess([5, 6, 7], 1) == ([8], 3)


def test_token_ids_of_a_file_are_below_the_size_of_the_vocabulary(tmp_path):
    stored(tmp_path, [5, 6, 7, 8, 99, 9], vocab_size=100)
    assert opened(tmp_path, vocab_size=99).guess([5, 6, 7], 9) == ([8], 3)
    assert opened(tmp_path, vocab_size=8).guess([5, 6, 7], 9) == ([], 3)


def test_places_that_are_not_known_yet_match_nothing(tmp_path):
    store = opened(tmp_path)
    store.add([0, 0, 0, 0])
    assert store.guess([-1, -1, -1], 1) == store.guess([-(2**31)] * 3, 1) == ([], 0)
    assert store.guess([0, 0, 0], 1) == ([0], 3)


# ---- the limit


def test_the_oldest_texts_go_first(tmp_path):
    for seed in range(40):
        stored(tmp_path, numbers(seed), limit=SMALL)
        assert sum(file.stat().st_size for file in files(tmp_path)) <= SMALL
        text = numbers(seed)
        assert opened(tmp_path).guess(text[:50], 1) == ([text[50]], 50)
    store = opened(tmp_path)
    is_found = [bool(store.guess(numbers(seed)[:50], 1)[0]) for seed in range(40)]
    assert is_found == sorted(is_found)
    assert 5 < sum(is_found) < 40


def test_the_limit_is_that_of_all_identities(tmp_path):
    for seed in range(40):
        stored(tmp_path, numbers(seed), identity=str(seed % 2), limit=SMALL)
        assert sum(file.stat().st_size for file in files(tmp_path)) <= SMALL
    stored(tmp_path, *(numbers(seed, 90) for seed in range(40)), limit=SMALL)
    assert not opened(tmp_path, identity="0").guess(numbers(38)[:50], 1)[0]


def test_a_running_process_writes_what_it_cannot_hold(tmp_path):
    store = opened(tmp_path, limit=SMALL)
    for seed in range(40):
        store.add(numbers(seed))
        assert sum(file.stat().st_size for file in files(tmp_path)) <= SMALL
        text = numbers(seed)
        assert store.guess(text[:50], 1) == ([text[50]], 50)
    assert files(tmp_path)


def test_no_limit_is_too_small(tmp_path):
    stored(tmp_path, *(numbers(seed) for seed in range(5)), limit=1)
    assert not files(tmp_path)


def test_many_restarts_leave_few_segments(tmp_path):
    for seed in range(60):
        stored(tmp_path, numbers(seed, 30))
    assert len(files(tmp_path)) <= 4
    store = opened(tmp_path)
    for seed in range(60):
        assert store.guess(numbers(seed, 30)[:20], 1) == ([numbers(seed, 30)[20]], 20)


def test_equal_texts_are_kept_once(tmp_path):
    stored(tmp_path, numbers(1))
    size = files(tmp_path)[0].stat().st_size
    for _ in range(3):
        stored(tmp_path, numbers(1), numbers(1))
    assert [file.stat().st_size for file in files(tmp_path)] == [size]


def test_a_text_that_comes_again_is_the_latest(tmp_path):
    stored(tmp_path, [1, 2, 3, 4], [1, 2, 3, 5])
    assert opened(tmp_path).guess([1, 2, 3], 1) == ([5], 3)
    stored(tmp_path, [1, 2, 3, 4])
    assert opened(tmp_path).guess([1, 2, 3], 1) == ([4], 3)


# ---- several at once


def test_two_stores_on_one_directory(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    first.add(TEXT)
    second.add([1, 2, 3, 4])
    first.close()
    second.close()
    store = opened(tmp_path)
    assert store.guess([5, 6, 7], 1) == ([8], 3)
    assert store.guess([1, 2, 3], 1) == ([4], 3)


def test_segments_that_another_deletes_are_still_used(tmp_path):
    stored(tmp_path, TEXT)
    store = opened(tmp_path)
    stored(tmp_path, [1, 2, 3, 4])  # writes both texts into one segment
    assert len(files(tmp_path)) == 1
    assert store.guess([5, 6, 7], 1) == ([8], 3)


def test_while_another_merges_a_segment_of_its_own_is_written(tmp_path):
    stored(tmp_path, TEXT)
    with (files(tmp_path)[0].parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored(tmp_path, [1, 2, 3, 4])
    assert len(files(tmp_path)) == 2
    stored(tmp_path, [1, 2, 3, 5, 6])
    assert len(files(tmp_path)) == 1
    assert opened(tmp_path).guess([5, 6, 7], 1) == ([8], 3)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [LIMIT, SMALL])
def test_processes_at_once(limit, tmp_path):
    code = (
        "import sys; from pathlib import Path; from tokenmill.speculate.suffix_store import SuffixStore\n"
        "from tests.speculate.test_suffix_store import numbers\n"
        "for seed in range(int(sys.argv[2]), 60, 2):\n"
        f"    store = SuffixStore(Path(sys.argv[1]), 'model', {VOCABULARY}, {limit})\n"
        "    for part in range(5):\n"
        "        store.add(numbers(100 * seed + part))\n"
        "        assert store.guess(numbers(100 * seed + part)[:-2], 3)[1] == 64\n"
        "    store.close()"
    )
    command = [sys.executable, "-W", "error", "-c", code, tmp_path]
    running = [subprocess.Popen([*command, first], cwd=Path(__file__).parents[2]) for first in ("0", "1")]
    assert [process.wait() for process in running] == [0, 0]
    assert not [path for path in tmp_path.glob("*/.*") if path.name != ".lock"]
    store, texts = opened(tmp_path), [numbers(100 * seed + part) for seed in range(60) for part in range(5)]
    for text in texts:
        guessed, matched = store.guess(text[:-2], 3)
        check_guess(texts, text[:-2], guessed, matched)
        assert guessed == text[-2:] or limit == SMALL


# ---- damage


def quietly(folder, *tails):
    """The guesses of a new store, and how many warnings there were."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = opened(folder)
        guesses = [store.guess(tail, 6) for tail in tails]
        store.add([1, 2, 3])
        store.close()
    return guesses, len(said)


TEXTS = [TEXT, [5, 6, 7, 11, 12, 13, 14], numbers(3, 20), [20, 21, 22, 23] * 6]
TAILS = [[5, 6, 7], numbers(3, 20)[:15], [20, 21, 22, 23] * 3, [7, 11, 12], [1, 2, 3]]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [1, 0x80])
def test_a_damaged_byte_costs_only_guesses(damage, tmp_path):
    stored(tmp_path / "good", *TEXTS)
    good = files(tmp_path / "good")[0]
    data, num_said = good.read_bytes(), 0
    for at in range(len(data)):
        folder = tmp_path / str(at)
        bad = folder / good.parent.name / good.name
        bad.parent.mkdir(parents=True)
        bad.write_bytes(data[:at] + bytes([data[at] ^ damage]) + data[at + 1 :])
        guesses, said = quietly(folder, *TAILS)
        assert said <= 1
        num_said += said
        for tail, (guessed, matched) in zip(TAILS, guesses, strict=True):
            check_guess(TEXTS, tail, guessed, matched)
    assert num_said > 0.9 * data.index(bytes([0, 0, 0, 0x80] * WINDOW))  # where the tokens begin


@pytest.mark.slow
def test_a_file_that_was_cut_is_left_out(tmp_path):
    stored(tmp_path, *TEXTS)
    (file,) = files(tmp_path)
    data = file.read_bytes()
    for size in range(0, len(data), 5):
        file.write_bytes(data[:size])
        guesses, said = quietly(tmp_path, *TAILS)
        assert guesses == [([], 0)] * len(TAILS)
        assert said == 1
        for other in set(files(tmp_path)) - {file}:
            other.unlink()


def test_a_damaged_text_is_not_written_again(tmp_path):
    stored(tmp_path, TEXT)
    (file,) = files(tmp_path)
    data, front = bytearray(file.read_bytes()), bytes([0, 0, 0, 0x80] * WINDOW)
    data[data.index(front) + len(front) + 4] ^= 1
    file.write_bytes(data)
    store = opened(tmp_path)
    store.add([1, 2, 3, 4])
    with pytest.warns(UserWarning, match="left out.*does not match its checksum") as said:
        store.close()
    assert len(said) == 1
    assert len(files(tmp_path)) == 2
    assert opened(tmp_path).guess([1, 2, 3], 1) == ([4], 3)


@pytest.mark.parametrize("kind", ["empty", "directory", "pipe", "text", "identity"])
def test_what_is_no_segment_is_left_out_and_said_once(kind, tmp_path):
    stored(tmp_path, TEXT)
    folder = files(tmp_path)[0].parent
    for name in ("0" * 20 + "-00000000.texts", "0" * 20 + "-00000001.texts"):
        path = folder / name
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "identity":
            stored(tmp_path / name, TEXT, identity="other")
            files(tmp_path / name)[0].rename(path)
        else:
            path.write_bytes(b"" if kind == "empty" else b"nothing of ours" * 99)
    with pytest.warns(UserWarning, match=r"left out: .*00\.texts") as said:
        store = opened(tmp_path)
    assert len(said) == 1
    assert store.guess([5, 6, 7], 1) == ([8], 3)
    store.add([1, 2, 3, 4])
    store.close()


# ---- a disk that refuses


def refuse(*_, **__):
    raise PermissionError(13, "Permission denied")


def test_a_directory_that_is_only_read(tmp_path, monkeypatch):
    """By patches, because permissions do not bind every user that runs these tests."""
    stored(tmp_path, TEXT)
    before = {file: file.read_bytes() for file in files(tmp_path)}
    whole = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r", *how: whole(path, mode) if mode == "rb" else refuse())
    monkeypatch.setattr(Path, "unlink", refuse)
    store = opened(tmp_path, limit=SMALL)
    with pytest.warns(UserWarning, match=r"no more texts are kept in .*Permission denied") as said:
        for seed in range(20):
            store.add(numbers(seed))
            assert store.guess(numbers(seed)[:50], 1) == ([numbers(seed)[50]], 50)
            assert store.guess([5, 6, 7], 1) == ([8], 3)
        store.close()
    assert len(said) == 1
    assert {file: file.read_bytes() for file in files(tmp_path)} == before


def test_a_full_disk_is_said_once(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(suffix_store, "write_segment", full)
    store = opened(tmp_path, limit=SMALL)
    with pytest.warns(UserWarning, match=r"no more texts are kept in .*No space left") as said:
        for seed in range(20):
            store.add(numbers(seed))
        store.close()
    assert len(said) == 1


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    store = opened(tmp_path / "file")
    store.add(TEXT)
    assert store.guess([5, 6, 7], 1) == ([8], 3)
    with pytest.warns(UserWarning, match="no more texts are kept"):
        store.close()


def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch):
    stored(tmp_path, TEXT)
    before = files(tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    store = opened(tmp_path, limit=SMALL)
    with monkeypatch.context() as patches:
        patches.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for seed in range(20):
                store.add(numbers(seed))
    assert files(tmp_path) == before
    assert not [path for path in tmp_path.glob("*/.*") if path.name != ".lock"]
    assert store.guess([5, 6, 7], 1) == ([8], 3)
    store.add([1, 2, 3, 4])
    store.close()
    assert opened(tmp_path).guess([1, 2, 3], 1) == ([4], 3)
    assert opened(tmp_path).guess(numbers(0)[:50], 1) == ([numbers(0)[50]], 50)


def test_what_a_killed_process_left_is_deleted_when_it_is_old(tmp_path):
    stored(tmp_path, TEXT)
    old, new, other = (beside(files(tmp_path)[0]) for _ in range(3))
    for path, content in ((old, b"TMTEXTS\nhalf"), (new, b"TMTEXTS\nhalf"), (other, b"my letters")):
        path.write_bytes(content)
    for path in (old, other):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    stored(tmp_path, [1, 2, 3, 4])
    assert not old.exists()
    assert new.exists() and other.exists()


def test_files_that_are_not_its_own_are_left_alone(tmp_path):
    """The directory may hold other things, and whatever they are called, they are not counted."""
    others = [
        tmp_path / "letters" / "important.texts",
        tmp_path / "letters" / "00000000000000000001-01234567.texts",
        tmp_path / "0123456789abcdef" / "mine.texts",
        tmp_path / "0123456789abcdef" / "00000000000000000001-01234567.texts",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(LIMIT + 1))
        os.utime(path, (0, 0))
    stored(tmp_path, TEXT)
    stored(tmp_path, [1, 2, 3, 4])
    assert all(path.exists() for path in others)
    assert opened(tmp_path).guess([5, 6, 7], 1) == ([8], 3)


def test_a_backup_in_its_folder_is_neither_read_nor_merged_away(tmp_path):
    stored(tmp_path, TEXT)
    (segment,) = files(tmp_path)
    backup = segment.with_name("backup.texts")
    segment.rename(backup)
    stored(tmp_path, [1, 2, 3, 4])
    assert backup.exists() and len(files(tmp_path)) == 2
    assert opened(tmp_path).guess([5, 6, 7], 1) == ([], 0)


def test_what_cannot_be_written_makes_room_for_what_comes(tmp_path, monkeypatch):
    """The latter half of the texts may be nearly all of their tokens."""
    monkeypatch.setattr(suffix_store, "write_segment", refuse)
    store = opened(tmp_path, limit=SMALL)
    sizes = [10, 200, 200]  # two of these fill it
    with pytest.warns(UserWarning, match="no more texts are kept"):
        for seed in range(4):
            for size in sizes:
                store.add(numbers(seed, size))
                assert store.guess(numbers(seed, size)[:9], 1)[0]


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path):
    stored(tmp_path, TEXT)
    (lock,) = tmp_path.glob("*/.lock")
    lock.unlink()
    os.mkfifo(lock)
    with pytest.warns(UserWarning, match="no more texts are kept"):
        stored(tmp_path, [1, 2, 3, 4])
