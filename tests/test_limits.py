"""Limits of the platform: cores, memory, file systems, and paths as typed."""

import errno
import math
import os
import pathlib
import stat

import pytest

from identity_matters import limits, paths, runs

NO_LIMIT_1 = 2**63 - 4096

# Name -> (proc/self/cgroup, proc/self/mounts, {file: text}, cores or None, bytes or
# None)
MACHINES = {
    "no control groups": ("", "proc /proc proc rw 0 0", {}, None, None),
    "version 2, no limit": (
        "0::/user.slice/me\n",
        "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        {
            "sys/fs/cgroup/user.slice/me/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/me/memory.max": "max\n",
        },
        None,
        None,
    ),
    "version 2, a limit of the parent": (
        "0::/job/step\n",
        "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        {
            "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/job/memory.max": "700000000\n",
        },
        0.5,
        700_000_000,
    ),
    "version 2 in a container": (
        "0::/\n",
        "cgroup /sys/fs/cgroup cgroup2 ro 0 0\n",
        {
            "sys/fs/cgroup/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/memory.max": "1000\n",
        },
        1.5,
        1000,
    ),
    "version 1, a limit of its own": (
        "4:memory:/job_7\n3:cpu,cpuacct:/job_7\n1:name=systemd:/\n",
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n",
        {
            "sys/fs/cgroup/memory/job_7/memory.limit_in_bytes": "700000000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{NO_LIMIT_1}\n",
            "sys/fs/cgroup/cpu,cpuacct/job_7/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/job_7/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        2,
        700_000_000,
    ),
    "version 1 in a container, named as on the host": (
        "4:memory:/docker/0123\n",
        "cgroup /sys/fs/cgroup/memory cgroup ro,memory 0 0\n",
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": "64000000\n"},
        None,
        64_000_000,
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_least_limit_counts(name, tmp_path, monkeypatch):
    groups, mounts, files, cores, memory = MACHINES[name]
    for file, text in {
        "proc/self/cgroup": groups,
        "proc/self/mounts": mounts,
        **files,
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    quotas = list(limits._core_quotas(tmp_path))
    assert quotas == ([] if cores is None else [cores])
    assert list(limits._memory_limits(tmp_path)) == ([] if memory is None else [memory])
    monkeypatch.setattr(limits, "_ROOT", tmp_path)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(range(64)), raising=False
    )
    assert limits.usable_cores() == (64 if cores is None else math.ceil(cores))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert limits.memory_bytes() == (physical if memory is None else memory)


def test_here_at_least_one_core_and_some_memory_are_found():
    assert 1 <= limits.usable_cores() <= os.cpu_count()
    assert 10**6 < limits.memory_bytes() < math.inf


def test_where_the_system_does_not_tell_the_memory_is_unlimited(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_ROOT", tmp_path)
    monkeypatch.delattr(os, "sysconf")
    assert limits.memory_bytes() == math.inf


def test_a_leading_tilde_is_the_home_directory_and_no_other_tilde_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert paths.expand_home("~/x") == "/home/ada/x"
    assert paths.expand_home(pathlib.Path("~")) == "/home/ada"
    for same in ("a/~/x", "./~x", "gs://b/~", "/abs", "", "x~"):
        assert paths.expand_home(same) == same
    with pytest.raises(
        ValueError, match=r"~nobody-here/x: this home .*; write the path out"
    ):
        paths.expand_home("~nobody-here/x")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_share_that_cannot_flush_directories_can_hold_runs(
    tmp_path, monkeypatch, number
):
    """CIFS, sshfs and VirtualBox refuse; a failing disk is still an error."""
    flush = os.fsync

    def refuse_directories(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    path = tmp_path / "file"
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            runs.write_atomically(path, "text")
    else:
        runs.write_atomically(path, "text")
        assert path.read_text() == "text"
