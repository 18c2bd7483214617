"""Threads that share a machine: they sleep while they wait, and there are as many as cores that are free.

Linux only: what the kernel says in /proc, /sys and the cgroup's files.
"""

import os
import time
from pathlib import Path

WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Environment of OpenMP; torch's CPU build brings GNU's libgomp along. By default a thread that waits for
another spins: with more threads than free cores, it takes the time of the one that it waits for."""
LOOK_S = 0.3
"""How long to look at what other programs do."""


def let_waiting_threads_sleep() -> None:
    """For this process and those that it starts; call before torch is imported. What the user set stays."""
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)


def n_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use, at least one: two hardware threads of one core count once, and
    affinity and the quota of its cgroup count.

    Args:
        root: where /proc and /sys lie.
    """
    return max(1, min([_n_allowed(root), *_quotas(root)]))


def n_processors(root: Path = Path("/")) -> int:
    """Processors that this process may use, at least one: as `n_cores`, but each hardware thread of a core
    counts.

    Args:
        root: where /proc and /sys lie.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(root)]))


def n_free_cores(root: Path = Path("/"), seconds: float = LOOK_S) -> int:
    """Of `n_cores`, at least one, those that other programs leave free, which is looked at for `seconds`.

    Args:
        root: where /proc and /sys lie.
        seconds: how long to look.
    """
    before, started = _others_s(root), time.monotonic()
    time.sleep(seconds)
    busy = (_others_s(root) - before) / (time.monotonic() - started)
    return max(1, min(n_cores(root), round(_n_allowed(root) - busy)))


def _n_allowed(root: Path) -> int:
    """Cores of the processors of our affinity; a processor that the kernel does not place is one."""
    cores = {_siblings(root, i) for i in os.sched_getaffinity(0)}
    return len(cores)


def _siblings(root: Path, processor: int) -> str:
    path = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    try:
        return path.read_text().strip()
    except OSError:
        return str(processor)


def _quotas(root: Path) -> list[int]:
    """Processors' worth of time that our cgroup and those around it grant, rounded up."""
    found: list[int] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            mount, files = root / "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            mount, files = root / "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        inner = mount / name.lstrip("/")
        for folder in (inner, *inner.parents):
            words = [
                word for file in files for line in _lines(folder / file) for word in line.split()
            ]
            if len(words) == 2 and words[0] not in ("max", "-1"):
                found.append(-(-int(words[0]) // int(words[1])))
            if folder == mount:
                break
    return found


def _others_s(root: Path) -> float:
    """Seconds in which the processors of our affinity have worked for others than us and our children."""
    ours = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    ticks = 0
    for line in _lines(root / "proc/stat"):
        name, *counts = line.split()
        if name in ours:
            # Not `idle`, not `iowait`; `guest` is part of `user`.
            ticks += sum(int(n) for i, n in enumerate(counts[:8]) if i not in (3, 4))
    return (ticks - _own_ticks(root)) / os.sysconf("SC_CLK_TCK")


def _own_ticks(root: Path) -> int:
    """Of this process and all that descend from it and run."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in (root / "proc").glob("[0-9]*/stat"):
        for line in _lines(path):
            # The name of the program, in brackets, may hold anything.
            fields = line.rpartition(")")[2].split()
            process, parent = int(path.parent.name), int(fields[1])
            ticks[process] = int(fields[11]) + int(fields[12])
            children.setdefault(parent, []).append(process)
    family = [os.getpid()]
    for process in family:
        family += children.get(process, [])
    return sum(ticks.get(process, 0) for process in family)


def _lines(path: Path) -> list[str]:
    """None where there is no such file, or no more: processes end."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
