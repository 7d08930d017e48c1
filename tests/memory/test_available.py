"""Memory and processors that a process may take: its control groups of both versions, nested, and other limits.

The trees are written as Linux shows them: https://docs.kernel.org/admin-guide/cgroup-v2.html, and cgroup-v1/.
"""

import math
import os
import resource

import pytest

from tokenmill.memory import available
from tokenmill.memory.available import allowed_memory, allowed_processors, available_bytes, available_processors

GB = 1 << 30
V2 = {"proc/self/cgroup": "0::/app.slice/mill\n"}
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = {
    "proc/self/cgroup": "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/docker/abc\n"
}
HERE = "sys/fs/cgroup"


def tree(root, *parts):
    """A root directory with these files."""
    for path, text in {name: text for part in parts for name, text in part.items()}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}")
    return root


MEMORY = {
    "no limit": ({f"{HERE}/app.slice/mill/memory.max": "max\n"}, math.inf),
    "its own": ({f"{HERE}/app.slice/mill/memory.max": GB, f"{HERE}/app.slice/mill/memory.current": 1000}, GB - 1000),
    "page cache can be given back, and what lies in memory file systems cannot": (
        {
            f"{HERE}/app.slice/mill/memory.max": GB,
            f"{HERE}/app.slice/mill/memory.current": 9000,
            f"{HERE}/app.slice/mill/memory.stat": "anon 1\nfile 7000\ninactive_file 4000\nactive_file 1000\n",
        },
        GB - 4000,
    ),
    "of the group around it": (
        {
            f"{HERE}/app.slice/mill/memory.max": 4 * GB,
            f"{HERE}/app.slice/mill/memory.current": GB,
            f"{HERE}/app.slice/memory.max": 2 * GB,
            f"{HERE}/app.slice/memory.current": GB,
        },
        GB,
    ),
    "of the whole mount, as a container sees its own": (
        {"proc/self/cgroup": "0::/\n", f"{HERE}/memory.max": GB, f"{HERE}/memory.stat": "anon 1000\nfile 700\n"},
        GB - 1000,
    ),
    "of another group, which is none of ours": ({f"{HERE}/other/memory.max": 1}, math.inf),
    "of a group that is outside what is seen": (
        {"proc/self/cgroup": "0::/../../other\n", f"{HERE}/memory.max": GB},
        GB,
    ),
    "more is used than allowed": (
        {f"{HERE}/app.slice/mill/memory.max": 1000, f"{HERE}/app.slice/mill/memory.current": 2000},
        0,
    ),
}


@pytest.mark.parametrize("mount", ["", V2_MOUNT], ids=["usual place", "mountinfo"])
@pytest.mark.parametrize("which", MEMORY)
def test_memory_of_version_2(tmp_path, which, mount):
    files, expected = MEMORY[which]
    assert allowed_memory(tree(tmp_path, V2, {"proc/self/mountinfo": mount}, files)) == expected


def test_a_mount_elsewhere(tmp_path):
    """The mount shows a part, as for a group that is mounted into a container."""
    mount = "9 1 0:2 /app.slice /run/groups rw - cgroup2 none rw\n"
    files = {"run/groups/mill/memory.max": 500, "run/groups/memory.max": 9000, f"{HERE}/app.slice/mill/memory.max": 1}
    assert allowed_memory(tree(tmp_path, V2, {"proc/self/mountinfo": mount}, files)) == 500


V1_MOUNTS = (
    "31 23 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    "32 23 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
)


@pytest.mark.parametrize("below", ["", "docker/abc/"], ids=["container", "host"])
def test_version_1(tmp_path, below):
    """In a container each mount shows the container's group; on the host it shows all of them."""
    mounts = V1_MOUNTS if not below else ""
    memory, cpu = f"{HERE}/memory/{below}", f"{HERE}/cpu,cpuacct/{below}"
    files = {
        "proc/self/mountinfo": mounts,
        f"{memory}memory.limit_in_bytes": 2 * GB,
        f"{memory}memory.usage_in_bytes": 9000,
        f"{memory}memory.stat": "cache 100\ninactive_file 1\ntotal_inactive_file 3000\ntotal_active_file 1000\n",
        f"{cpu}cpu.cfs_quota_us": 150_000,
        f"{cpu}cpu.cfs_period_us": 100_000,
    }
    root = tree(tmp_path, V1, files)
    assert allowed_memory(root) == 2 * GB - 5000
    assert allowed_processors(root) == 1.5


def test_version_1_without_limits(tmp_path):
    files = {
        f"{HERE}/memory/docker/abc/memory.limit_in_bytes": 9223372036854771712,
        f"{HERE}/cpu/docker/abc/cpu.cfs_quota_us": -1,
        f"{HERE}/cpu/docker/abc/cpu.cfs_period_us": 100_000,
    }
    root = tree(tmp_path, V1, files)
    assert allowed_memory(root) == allowed_processors(root) == math.inf


QUOTAS = {
    "max 100000": math.inf,
    "100000 100000": 1.0,
    "50000 100000": 0.5,
    "250000 100000": 2.5,
    "300000": 3.0,
    "": math.inf,
    "nonsense": math.inf,
}


@pytest.mark.parametrize("quota", QUOTAS)
def test_the_time_of_processors(tmp_path, monkeypatch, quota):
    root = tree(tmp_path, V2, {f"{HERE}/app.slice/mill/cpu.max": quota})
    assert allowed_processors(root) == QUOTAS[quota]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert available_processors(root) == min(4, max(1, math.floor(min(QUOTAS[quota], 4))))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    assert available_processors(root) == 1


def test_the_least_quota_of_all_groups_counts(tmp_path):
    files = {f"{HERE}/app.slice/mill/cpu.max": "max 100000", f"{HERE}/app.slice/cpu.max": "200000 100000"}
    assert allowed_processors(tree(tmp_path, V2, files)) == 2.0


def meminfo(free_kb, *more):
    return {"proc/meminfo": "\n".join(["MemTotal: 9000000 kB", f"MemAvailable:    {free_kb} kB", *more, ""])}


def test_what_is_free_and_what_is_allowed(tmp_path):
    assert available_bytes(tree(tmp_path, V2, meminfo(8_000_000))) == 8_000_000 * 1024
    group = {f"{HERE}/app.slice/mill/memory.max": "5000000\n", f"{HERE}/app.slice/mill/memory.stat": "anon 1000000\n"}
    assert available_bytes(tree(tmp_path, group)) == 4_000_000


@pytest.mark.parametrize(("mode", "expected"), [("0", 8_000), ("1", 8_000), ("2", 1_000)])
def test_a_system_that_promises_no_more_than_it_has(tmp_path, mode, expected):
    facts = meminfo(8_000, "CommitLimit: 5000 kB", "Committed_AS: 4000 kB")
    root = tree(tmp_path, facts, {"proc/sys/vm/overcommit_memory": f"{mode}\n"})
    assert available_bytes(root) == expected * 1024


@pytest.mark.parametrize(("limit", "expected"), [(resource.RLIM_INFINITY, 8_000), (3_000, 2_000), (500, 0)])
def test_a_limit_of_the_address_space(tmp_path, monkeypatch, limit, expected):
    limit = limit if limit == resource.RLIM_INFINITY else limit * 1024
    monkeypatch.setattr(available.resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    root = tree(tmp_path, meminfo(8_000), {"proc/self/status": "Name:\tmill\nVmSize:\t    1000 kB\n"})
    assert available_bytes(root) == expected * 1024


def test_nothing_to_read(tmp_path):
    assert available_bytes(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_processors(tmp_path) >= 1


def test_lines_of_other_kinds_are_passed_over(tmp_path, monkeypatch):
    """A name of two words, a number without its unit, and a unit without a number."""
    monkeypatch.setattr(available.resource, "getrlimit", lambda _: (3000 * 1024, 5000 * 1024))
    status = {"proc/self/status": "Name:\tmy mill\nVmSize: 2000\nVmPeak:\tno kB\n"}
    assert available_bytes(tree(tmp_path, meminfo(8_000, "HugePages_Total: 7", "Note: of it"), status)) == 3000 * 1024


def test_what_is_promised_and_not_told_is_nothing(tmp_path):
    promised = {"proc/sys/vm/overcommit_memory": "2"}
    assert available_bytes(tree(tmp_path, meminfo(8_000, "CommitLimit: 5000 kB"), promised)) == 5000 * 1024
    more = meminfo(8_000, "CommitLimit: 5000 kB", "Committed_AS: 6000 kB")
    assert available_bytes(tree(tmp_path, more, promised)) == 0
    assert available_bytes(tree(tmp_path, meminfo(8_000), promised)) == 8_000 * 1024


def test_the_limit_that_holds_is_that_of_the_address_space(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(available.resource, "getrlimit", lambda which: asked.append(which) or (0, 0))
    assert available_bytes(tmp_path) == 0
    assert asked == [resource.RLIMIT_AS]


@pytest.mark.parametrize(("given", "expected"), [(3, 3), (None, 1)])
def test_a_system_without_an_affinity(tmp_path, monkeypatch, given, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: given)
    assert available_processors(tmp_path) == expected


def test_the_affinity_is_that_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0: {1, 2, 3}}[process], raising=False)
    assert available_processors(tmp_path) == 3
