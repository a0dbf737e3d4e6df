"""How many cores and how much memory this process may use.

The limits are the machine's, or its container's. Containers and SLURM jobs are limited
by control groups, which a program does not notice until it is slowed down or killed.
Both versions of control groups are read: version 1 has one hierarchy for each
controller, version 2 one for all of them. A group is also bound by the limits of its
parents.
"""

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator

_ROOT = pathlib.Path("/")
# Version 1 writes "no limit" as the largest
# multiple of a page: 2^63 - 4096 and the like.
_NO_LIMIT_BYTES = 2**60


def usable_cores() -> int:
    """The number of processor cores that this process may use, at least 1.

    It is the least of the machine's cores, the process's affinity, and the quotas of
    its control groups. A quota of a part of a core is rounded up.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _core_quotas(_ROOT)]
    return max(1, min([cores, *quotas]))


def memory_bytes() -> float:
    """The memory that this process may use, in bytes; infinity if that is unknown.

    It is the least of the machine's memory and the limits of the process's control
    groups.
    """
    limits = list(_memory_limits(_ROOT))
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not a POSIX system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=math.inf)


def _core_quotas(root: pathlib.Path) -> Iterator[float]:
    """The quota of each control group, in cores; those without a quota are left out."""
    for directory in _control_groups(root, "cpu"):
        # Version 2 of control groups has both numbers in one file, version 1 each in
        # its own; a directory is of one version.
        words = [
            *_words(directory / "cpu.max"),
            *_words(directory / "cpu.cfs_quota_us"),
            *_words(directory / "cpu.cfs_period_us"),
        ]
        if len(words) != 2:
            continue
        quota, period = words
        # Without a quota version 2 writes "max", and version 1 writes -1.
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)


def _memory_limits(root: pathlib.Path) -> Iterator[int]:
    """The memory limit of each control group that has one, in bytes."""
    for directory in _control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            for word in _words(directory / name):
                if word.isdecimal() and int(word) < _NO_LIMIT_BYTES:
                    yield int(word)


def _control_groups(root: pathlib.Path, controller: str) -> Iterator[pathlib.Path]:
    """This process's groups for `controller` and all their parents: directories.

    A directory may not exist: inside a container the group's name can be that on the
    host, while the container's own group is mounted at the top.
    """
    # controller of version 1, or "" for version 2 -> the group's name
    names: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, name = line.split(":", 2)
        names |= dict.fromkeys(controllers.split(","), name)
    for mounted, top in _mounts(root, controller):
        if mounted in names:
            group = pathlib.PurePosixPath(names[mounted].lstrip("/"))
            for directory in (group, *group.parents):
                yield top / directory


def _mounts(root: pathlib.Path, controller: str) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields where control groups are mounted.

    As (`controller`, directory) for version 1, and ("", directory) for version 2.
    """
    for line in _lines(root / "proc/self/mounts"):
        _, mounted_at, kind, options, *_ = line.split()
        top = root / mounted_at.lstrip("/")
        if kind == "cgroup" and controller in options.split(","):
            yield controller, top
        elif kind == "cgroup2":
            yield "", top


def _lines(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: pathlib.Path) -> list[str]:
    return " ".join(_lines(path)).split()
