"""The Dask workers of a run: who can stand in for this process, who is refused, who was lost, and what each
has needed; said to people as it happens."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from permafrost.flows.engine.prefect import ClusterGoneError

MISSED_S = 10.0
"""How long a run is without a worker before that is said: one that was killed is started again meanwhile."""
PAUSED_S = 2.0
"""How long a worker is paused before that is said: checks of other runs pause it for no time."""
GPU = "GPU"
"""Dask resource of workers that are to have what runs the backbone."""
MEMORY_TOPIC = "worker-restart-memory"
"""Where Dask's nannies tell of a worker that they end because it needs too much memory."""


@dataclass
class _Member:
    resources: frozenset[str]
    name: str
    limit: int
    """Bytes that it may hold; 0 if that is not bounded."""
    peak: int = 0
    """Bytes that it held at most, as far as was heard."""
    over: str = ""
    """What it held when Dask ended it for that, for people."""
    paused_since: float | None = None
    """Since when Dask gives it nothing to begin."""
    paused_said: bool = False
    has: set[str] = field(default_factory=set)
    """Tasks that it has begun."""


class Roster:
    """Fed with what workers and the scheduler tell, in the client's own thread; others read it meanwhile.

    Args:
        tell: says a line, in a style.
    """

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._fit: dict[str, _Member] = {}
        self._lost: list[tuple[str, _Member]] = []
        """An address may come back."""
        self._labels: dict[str, str] = {}
        """Of tasks that somebody waits for."""
        self._losses: Counter[str] = Counter()
        """Workers that were lost after they had begun a task."""
        self._refused: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._gpu_missed_since: float | None = None
        """Since when none of those that had a GPU is there."""
        self._trusted: set[str] = set()
        """Workers that were fit and never refused, lost ones too."""
        self._alone_since: float | None = None
        self._saying = threading.Lock()
        """What is said once may be found by several threads."""

    @property
    def fit(self) -> list[str]:
        """Addresses of workers that can stand in for this process."""
        return sorted(self._fit)

    @property
    def seen(self) -> set[str]:
        """Addresses of workers that are there and were checked."""
        return self._fit.keys() | self._refused.keys()

    @property
    def n_lost(self) -> int:
        """Workers that could be used, and are gone."""
        return len(self._lost)

    @property
    def has_gpus(self) -> bool:
        """Whether any of them has a GPU, or had one: what needs it waits for another worker with it."""
        return any(GPU in m.resources for m in self._ever())

    def checked(self, message: Mapping[str, Any]) -> None:
        """A worker was checked (worker_check.WorkerCheck)."""
        address, problem = message["address"], message["problem"]
        self._names[address] = message["name"]
        if problem:
            host = f" on {message['host']}" if message["host"] else ""
            self.refuse(address, problem, host)
            return
        self._refused.pop(address, None)
        self._trusted.add(address)
        self._fit.setdefault(
            address,
            _Member(frozenset(message["resources"]), self.called(address), message["limit"]),
        )
        self.changed(address, message["status"])

    def refuse(self, address: str, problem: str, where: str = "") -> None:
        """A worker differs from this process; it gets nothing more."""
        self._fit.pop(address, None)
        self._trusted.discard(address)
        if address not in self._refused:
            self._refused[address] = problem
            self._tell(
                f"refused the Dask worker {self.called(address)}{where}: it {problem}. It gets nothing "
                "of this run; start it in the same environment, with the same files",
                "red",
            )

    def asked(self, task: str, label: str) -> None:
        """Somebody waits for a task, which people call so."""
        self._labels[task] = label

    def told(self, task: str, address: str, peak: int) -> None:
        """A worker tells of a task that it has begun, and has held so many bytes of memory at most."""
        if (member := self._fit.get(address)) is not None:
            member.has.add(task)
            member.peak = max(member.peak, peak)

    def ended(self, task: str) -> None:
        """Nobody waits for a task any more, and no worker has it."""
        self._labels.pop(task, None)
        self._losses.pop(task, None)
        for member in list(self._fit.values()):
            member.has.discard(task)

    def over_memory(self, message: Mapping[str, Any]) -> None:
        """Dask ends a worker, which holds too much; this may be heard when it is gone."""
        address, held = message["worker"], message["rss"]
        lost = (member for a, member in reversed(self._lost) if a == address)
        member = self._fit.get(address) or next(lost, None)
        if member is not None and not member.over:
            member.peak = max(member.peak, held)
            member.over = f"{held / 1e9:.2f} GB of the {member.limit / 1e9:.2f} GB that it may hold"
            self._tell(f"the Dask worker {member.name} holds {member.over}: Dask ends it", "yellow")

    def changed(self, address: str, status: str) -> None:
        """A worker has another status, by Dask's name: `running`, `paused`, ..."""
        if (member := self._fit.get(address)) is not None:
            member.paused_since = time.monotonic() if status == "paused" else None

    def too_much(self, task: str) -> str:
        """What the last worker that was ended for its memory while it had a task held, for people."""
        found = (m.over for _, m in reversed(self._lost) if task in m.has and m.over)
        return next(found, "")

    def n_lost_with(self, task: str) -> int:
        """Workers that were lost after they had begun a task, as far as was heard."""
        return self._losses[task]

    def removed(self, address: str) -> None:
        """A worker is gone."""
        self._refused.pop(address, None)
        if (member := self._fit.pop(address, None)) is None:
            return
        self._lost.append((address, member))
        labels = dict(self._labels)
        begun = member.has & labels.keys()
        self._losses.update(begun)
        had = sorted(labels[task] for task in begun)
        what = f" while it had '{had[0]}', which goes to another" if had else ""
        self._tell(f"lost the Dask worker {member.name}{what}", "yellow")

    def called(self, address: str) -> str:
        """A worker, for people: its address, and its name if somebody gave it one."""
        name = self._names.get(address, address)
        return address if name == address or name.isdigit() else f"{name} ({address})"

    def require(self, scheduler: str | None) -> bool:
        """Whether there is a worker that can be used; says so if there was none for a while, or Dask has
        paused one for its memory.

        Args:
            scheduler: where others could join; None if the run has workers of its own.

        Raises:
            ClusterGoneError: all workers that there ever were are unlike this process.
        """
        with self._saying:
            return self._is_served(scheduler)

    def _is_served(self, scheduler: str | None) -> bool:
        if self._fit:
            self._alone_since = None
            self._say_who_is_paused()
            self._say_that_gpus_are_missing(scheduler)
            return True
        if self._refused and not self._trusted:
            raise ClusterGoneError(
                "no Dask worker can stand in for this process: "
                + "; ".join(f"{self.called(a)} {why}" for a, why in list(self._refused.items()))
                + ". Start workers in the same environment, with the same files"
            )
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        elif self._trusted and now - self._alone_since > MISSED_S:
            self._alone_since = float("inf")
            self._tell(
                f"no Dask worker is left that can be used; waiting for one {_where(scheduler)}",
                "yellow",
            )
        return False

    def _ever(self) -> list[_Member]:
        return [*list(self._fit.values()), *(member for _, member in list(self._lost))]

    def _say_that_gpus_are_missing(self, scheduler: str | None) -> None:
        if not self.has_gpus or any(GPU in m.resources for m in list(self._fit.values())):
            self._gpu_missed_since = None
            return
        now = time.monotonic()
        if self._gpu_missed_since is None:
            self._gpu_missed_since = now
        elif now - self._gpu_missed_since > MISSED_S:
            self._gpu_missed_since = float("inf")
            self._tell(
                f"no Dask worker with the resource {GPU} is left; the backbone waits for one "
                f"{_where(scheduler)}",
                "yellow",
            )

    def _say_who_is_paused(self) -> None:
        for member in list(self._fit.values()):
            since = member.paused_since
            if since is not None and not member.paused_said and time.monotonic() - since > PAUSED_S:
                member.paused_said = True
                self._tell(
                    f"Dask has paused the worker {member.name}, which holds too much of the "
                    f"{member.limit / 1e9:.2f} GB that it may hold: it begins nothing more until it "
                    "holds less. Should that last, set runtime.worker_memory_bytes to more "
                    "(--memory-limit of 'dask worker')",
                    "yellow",
                )

    def needed(self, peaks: Mapping[str, int]) -> str:
        """What workers took of memory, for people.

        Args:
            peaks: of those that live, in bytes.
        """
        for address, peak in peaks.items():
            if (member := self._fit.get(address)) is not None:
                member.peak = max(member.peak, peak)
        living = [self._fit[address] for address in self.fit]
        said = f"memory of {len(living)} Dask workers at its peak: {_peaks(living)}"
        lost = [member for _, member in self._lost]
        limits = [member.limit for member in (*living, *lost) if member.limit]
        most = f" of at most {min(limits) / 1e9:.1f} GB each" if limits else " GB, not bounded"
        more = (
            f"; of {len(lost)} that were lost, as far as they told: {_peaks(lost)}" if lost else ""
        )
        return said + most + more


def _where(scheduler: str | None) -> str:
    return f"to join {scheduler}" if scheduler else "to start again"


def _peaks(members: Collection[_Member]) -> str:
    return ", ".join(f"{member.peak / 1e9:.2f}" for member in members)
