"""Threads sleep while they wait, and follow the cores that there are and that others leave free."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from permafrost.flows import threads
from permafrost.flows.context import RunRuntime
from permafrost.flows.threads import n_cores, n_free_cores, n_processors

ENTRIES = {
    "command line": """
sys.modules["permafrost.flows.cli.app"] = Mock()
from permafrost.flows.cli import main
main()
""",
    "front door": """
sys.modules["permafrost.flows.front"] = Mock()
import permafrost
permafrost.plan("x.yaml")
""",
}
# torch's own OpenMP, without the rest of torch, which takes seconds.
CHILD = """
import ctypes, importlib.util, sys
from pathlib import Path
from unittest.mock import Mock
{}
assert "torch" not in sys.modules
torch = Path(importlib.util.find_spec("torch").origin).parent
ctypes.CDLL(str(next(p for f in (torch / "lib", torch.parent / "torch.libs") for p in f.glob("libgomp*"))))
"""


def seen_by_openmp(entry: str, **own: str) -> set[str]:
    """What torch's OpenMP says of itself when it is loaded after `entry`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(ENTRIES[entry])],
        env=environment | own | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize("entry", ENTRIES)
def test_waiting_threads_sleep_in_what_we_start(entry: str) -> None:
    seen = seen_by_openmp(entry)
    assert {"OMP_WAIT_POLICY = 'PASSIVE'", "GOMP_SPINCOUNT = '0'"} <= seen


def test_how_threads_wait_is_left_to_the_user_who_said_it() -> None:
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in seen_by_openmp("command line", OMP_WAIT_POLICY="ACTIVE")


class Machine:
    """/proc and /sys of a machine of four processors, two to a core, all of which we may use."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.now = root, 0.0
        self.patch = monkeypatch
        self.may_use(0, 1, 2, 3)
        for i in range(4):
            siblings = f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list"
            self.write(siblings, f"{i % 2},{i % 2 + 2}\n")
        self.busy = [0.0] * 4
        self.own = {os.getpid(): (1, 0.0)}
        self._show()

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def may_use(self, *processors: int) -> None:
        self.patch.setattr(os, "sched_getaffinity", lambda _: set(processors))

    def _show(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        rows = [
            f"cpu{i} {round(tick * s)} 0 0 {round(tick * (self.now - s))} 7 0 0 0 0 0"
            for i, s in enumerate(self.busy)
        ]
        self.write("proc/stat", "\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *rows, "intr 1"]) + "\n")
        for process, (parent, seconds) in self.own.items():
            self.write(
                f"proc/{process}/stat",
                f"{process} (a (b) c) R {parent} 0 0 0 0 0 0 0 0 0 {round(tick * seconds)} 0 0 0",
            )

    def works(self, *shares: float, own: dict[int, tuple[int, float]] | None = None) -> None:
        """From now on each processor for its share of the time; of it our processes for theirs."""

        def sleep(seconds: float) -> None:
            self.now += seconds
            self.busy = [b + seconds * share for b, share in zip(self.busy, shares, strict=True)]
            for process, (parent, share) in (own or {}).items():
                self.own[process] = (parent, seconds * share)
            self._show()

        # Not the real module's: threads that earlier tests left to libraries sleep by it too.
        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: self.now)
        self.patch.setattr(threads, "time", clock)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_two_hardware_threads_of_a_core_are_one_core(machine: Machine) -> None:
    assert n_cores(machine.root) == 2


def test_they_are_two_processors_and_a_quota_counts(machine: Machine) -> None:
    assert n_processors(machine.root) == 4
    machine.write("proc/self/cgroup", "0::/mine\n")
    machine.write("sys/fs/cgroup/mine/cpu.max", "250000 100000\n")
    assert n_processors(machine.root) == 3


@pytest.mark.parametrize(("processors", "cores"), [((0, 2), 1), ((0, 1), 2), ((3,), 1)])
def test_only_processors_of_our_affinity_count(
    machine: Machine, processors: tuple[int, ...], cores: int
) -> None:
    machine.may_use(*processors)
    assert n_cores(machine.root) == cores


def test_a_processor_without_a_place_is_a_core(machine: Machine) -> None:
    machine.may_use(0, 1, 8, 9)
    assert n_cores(machine.root) == 4


@pytest.mark.parametrize(
    ("path", "text", "cores"),
    [
        ("cpu.max", "100000 100000\n", 1),
        ("jobs/cpu.max", "50000 100000\n", 1),
        ("jobs/mine/cpu.max", "150000 100000\n", 2),
        ("jobs/mine/cpu.max", "max 100000\n", 2),
    ],
)
def test_a_quota_of_our_cgroup_or_one_around_it_counts(
    machine: Machine, path: str, text: str, cores: int
) -> None:
    machine.write("proc/self/cgroup", "0::/jobs/mine\n")
    machine.write(f"sys/fs/cgroup/{path}", text)
    assert n_cores(machine.root) == cores


@pytest.mark.parametrize(("quota", "cores"), [("100000", 1), ("-1", 2)])
def test_a_quota_of_the_first_cgroups_counts(machine: Machine, quota: str, cores: int) -> None:
    machine.write("proc/self/cgroup", "3:cpuset:/\n2:cpuacct,cpu:/mine\n1:name=systemd:/\n")
    machine.write("sys/fs/cgroup/cpu/mine/cpu.cfs_quota_us", f"{quota}\n")
    machine.write("sys/fs/cgroup/cpu/mine/cpu.cfs_period_us", "100000\n")
    assert n_cores(machine.root) == cores


@pytest.mark.parametrize(
    ("shares", "free"),
    [((0, 0, 0, 0), 2), ((0.3, 0, 0, 0), 2), ((1, 0, 0, 0), 1), ((0, 0.9, 0, 0.8), 1)],
)
def test_cores_that_others_use_are_not_free(
    machine: Machine, shares: tuple[float, ...], free: int
) -> None:
    machine.works(*shares)
    assert n_free_cores(machine.root) == free


def test_what_we_and_our_children_use_is_free(machine: Machine) -> None:
    me = os.getpid()
    machine.own |= {me + 1: (me, 0.0), me + 2: (me + 1, 0.0), me + 3: (1, 0.0)}
    machine.works(1, 0.5, 0, 0, own={me: (1, 0.5), me + 2: (me + 1, 0.5)})
    assert n_free_cores(machine.root) == 2
    machine.works(1, 0.5, 0, 0, own={me + 3: (1, 1.5)})
    assert n_free_cores(machine.root) == 1


def test_processors_that_others_may_use_do_not_count(machine: Machine) -> None:
    machine.may_use(0, 1)
    machine.works(0, 0, 1, 1)
    assert n_free_cores(machine.root) == 2


@pytest.mark.parametrize(
    ("runtime", "workers"),
    [({}, 6), ({"threads": 2}, 3), ({"threads": 8}, 1), ({"workers": 3, "threads": 8}, 3)],
)
def test_workers_share_the_free_cores_unless_the_user_says_how_many(
    monkeypatch: pytest.MonkeyPatch, runtime: dict[str, int], workers: int
) -> None:
    monkeypatch.setattr("permafrost.flows.context.n_free_cores", lambda: 6)
    assert RunRuntime(**runtime).choose_workers() == workers
