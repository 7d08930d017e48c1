"""The contents that files of control groups may have; test_available.py has whole trees of both versions."""

import math

import pytest

from tokenmill.memory.available import allowed_memory, allowed_processors

HERE = "sys/fs/cgroup"
GROUP = {"proc/self/cgroup": "0::/mill\n"}


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}")
    return root


@pytest.mark.parametrize(
    ("quota", "allowed"),
    [
        ("0 100000", math.inf),
        ("1 100000", 1e-5),
        ("100000 50000", 2.0),
        ("100000 none", 1.0),
        ("none 50000", math.inf),
    ],
)
def test_a_quota_of_version_2(tmp_path, quota, allowed):
    assert allowed_processors(tree(tmp_path, {**GROUP, f"{HERE}/mill/cpu.max": quota})) == allowed


@pytest.mark.parametrize(
    ("quota", "period", "allowed"),
    [("50000", "25000", 2.0), ("50000", None, 0.5), ("50000", "0", 0.5), ("-1", "5", math.inf)],
)
def test_a_quota_of_version_1(tmp_path, quota, period, allowed):
    folder = f"{HERE}/cpu/mill"
    files = {"proc/self/cgroup": "3:cpu:/mill\n", f"{folder}/cpu.cfs_quota_us": quota}
    if period is not None:
        files[f"{folder}/cpu.cfs_period_us"] = period
    assert allowed_processors(tree(tmp_path, files)) == allowed


@pytest.mark.parametrize(
    ("limit", "current", "stat", "allowed"),
    [
        (str(1 << 62), "5", "", math.inf),
        (str((1 << 62) - 1), "5", "", (1 << 62) - 6),
        ("1000", "400", "inactive_file 300\nactive_file 200\n", 1000),  # more can be given back than is used
        ("1000", "400", "a note of\ninactive_file 150\nempty\n", 750),
        ("1000", "400", "total_inactive_file 10\ninactive_file 5\n", 610),
        ("1000", None, "anon 300\ntotal_rss 200\n", 700),
        ("1000", None, "total_rss 200\n", 800),
        ("1000", None, "", 1000),
        ("none", "400", "", math.inf),
        ("0", "0", "", 0),
    ],
)
def test_a_limit_of_memory(tmp_path, limit, current, stat, allowed):
    folder = f"{HERE}/mill"
    files = {**GROUP, f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.stat": stat}
    if current is not None:
        files[f"{folder}/memory.current"] = current
    assert allowed_memory(tree(tmp_path, files)) == allowed


def limited(mounts, group="0::/mill\n", **limits):
    files = {"proc/self/cgroup": group, "proc/self/mountinfo": mounts}
    return files | {f"{folder}/memory.max": limit for folder, limit in limits.items()}


@pytest.mark.parametrize(
    "mounts",
    [
        "1 2 0:3 / /right - cgroup2 none rw\n",  # no more fields than are needed
        "1 2 0:3 / /wrong rw - tmpfs none rw,memory\n1 2 0:3 / /right rw - cgroup2 none rw\n",
        "1 2 0:3 / /wrong rw - cgroup none rw\n1 2 0:3 / /right rw - cgroup2 none rw\n",
        "1 2 0:3 / - cgroup2 none rw\n1 2 0:3 / /right rw - cgroup2 none rw\n",
        "1 2 0:3 / /wrong rw - cgroup2 none\n1 2 0:3 / /right rw - cgroup2 none rw\n",
        "\nnonsense\n1 2 0:3 / /right rw - cgroup2 none rw\n",
    ],
)
def test_the_mount_of_version_2_among_others(tmp_path, mounts):
    assert allowed_memory(tree(tmp_path, limited(mounts, **{"right/mill": 70, "wrong/mill": 7}))) == 70


@pytest.mark.parametrize(
    "other",
    [
        "tmpfs none rw,memory",
        "cgroup none rw,cpu",
        "cgroup2 none rw",
        "cgroup2 none rw,memory",
        "cgroup none rw,memory2",
    ],
)
def test_the_mount_of_version_1_among_others(tmp_path, other):
    mounts = f"1 2 0:3 / /wrong rw - {other}\n1 2 0:3 / /right rw - cgroup none rw,memory\n"
    files = limited(mounts, "4:memory:/mill\n", **{"right/mill": 70, "wrong/mill": 7})
    assert allowed_memory(tree(tmp_path, files)) == 70


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("4:memory:/mill", 70),
        ("4:pids,memory:/mill", 70),
        ("4:pids:/mill", math.inf),
        ("4::/mill", math.inf),
        ("0::/mill", math.inf),
    ],
)
def test_the_line_of_a_controller_of_version_1(tmp_path, line, allowed):
    mounts = "1 2 0:3 / /right rw - cgroup none rw,memory\n"
    assert allowed_memory(tree(tmp_path, limited(mounts, f"{line}\n", **{"right/mill": 70}))) == allowed


@pytest.mark.parametrize("path", ["/other", "/app/../other", "/ap"])
def test_of_a_group_outside_the_mount_the_mount_itself_counts(tmp_path, path):
    """A group beside the mount, to which the path may lead, is not ours."""
    mounts = "1 2 0:3 /app /run/groups rw - cgroup2 none rw\n"
    files = limited(
        mounts, f"0::{path}\n", **{"run/groups": 70, "run/other": 7, "run/groups/other": 7, "run/groups/app": 7}
    )
    assert allowed_memory(tree(tmp_path, files)) == 70


def test_without_a_mount_that_is_known_the_usual_places_are_looked_at(tmp_path):
    files = limited("", "4:pids,memory:/mill\n", **{f"{HERE}/memory/mill": 70, f"{HERE}/pids,memory/mill": 60})
    assert allowed_memory(tree(tmp_path, files)) == 60


def test_what_cannot_be_read_is_not_there(tmp_path):
    root = tree(tmp_path, {**GROUP, f"{HERE}/mill/cpu.max": ""})
    (root / HERE / "mill" / "memory.max").write_bytes(b"\xff\xfe")
    assert allowed_memory(root) == allowed_processors(root) == math.inf
