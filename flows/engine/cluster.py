"""The Dask workers of one run: found or started when a node has to be computed, checked, and watched."""

import contextlib
import json
import logging
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
from distributed import Client, Worker

from permafrost.flows.companion import Program, companion
from permafrost.flows.context import RunContext
from permafrost.flows.engine import cluster_process
from permafrost.flows.engine.in_worker import (
    UnlikeWorkerError,
    forget,
    peak_memory,
    threads_of_workers,
)
from permafrost.flows.engine.prefect import ClusterGoneError
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.roster import GPU, MEMORY_TOPIC, Roster
from permafrost.flows.engine.worker_check import WorkerCheck, facts_here, set_mark
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Resources
from permafrost.flows.stopping import STOP, Stopped
from permafrost.storage.drafts import draft_path, remove_drafts_of_dead_processes
from permafrost.storage.errors import IdentityMismatchError, InputError
from permafrost.storage.keys import digest
from permafrost.storage.replica import replica_of

CONNECT_S = 10.0
"""How long a scheduler may take to answer."""
STARTING_S = 120.0
"""How long a cluster on this machine may take to start."""
POLL_S = 0.1
PRELOADED = "permafrost.flows.engine.preloaded"
"""What workers of a cluster of ours have imported when they start."""
Event = tuple[float, dict[str, Any]]
"""Seconds since the epoch, on the scheduler, and what was told."""


class NoSchedulerError(ClusterGoneError, InputError):
    """No scheduler answers at the address that was given."""


class Cluster:
    """Use as a context manager; starts nothing before `start`.

    Args:
        where: an existing scheduler, or a cluster of our own.
        n_workers: of a cluster of our own.
        context: of the run.
        display: where what happens to workers is said.
    """

    def __init__(self, where: Dask, n_workers: int, context: RunContext, display: Display) -> None:
        self._where, self._n_workers = where, n_workers
        self._context, self._display = context, display
        self._threads = threads_of_workers(context.runtime)
        self._open = contextlib.ExitStack()
        self._starting = threading.Lock()
        self._client: Client | None = None
        self._nobody: NoSchedulerError | None = None
        self.name = f"permafrost-{uuid.uuid4().hex[:12]}"
        """Of the run, at the scheduler: of what is told, and of the check that workers have."""
        self.roster = Roster(display.tell)
        self._mark = ""
        self._heard: dict[str, Callable[[Event], None]] = {
            "all": self._happened,
            MEMORY_TOPIC: lambda event: self.roster.over_memory(event[1]),
        }
        self._given_up = False
        self._said_any = False

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = STOP.asked or not (kind is None or issubclass(kind, Exception))
        client = self._client
        if client is not None and client.status == "running" and not interrupted:
            # Of a run that failed, too: whoever it was short of memory for wants to see it.
            with contextlib.suppress(Exception):
                self._report()
        # With the error: who was interrupted does not wait for a cluster to end in order.
        self._open.__exit__(kind, error, trace)
        if self.roster.n_lost:
            remove_drafts_of_dead_processes(self._context.home)

    @property
    def n_workers(self) -> int:
        """Workers that take nodes now; of a cluster that was not needed yet how many there will be."""
        if self._client is None and self._where.scheduler is None:
            return self._n_workers
        return max(1, len(self.roster.fit))

    @property
    def terminal(self) -> Literal["ours", "its own"]:
        """Where a worker prints: those of a cluster of our own inherit our standard error."""
        return "ours" if self._where.scheduler is None else "its own"

    def listen(self, topic: str, hear: Callable[[Event], None]) -> None:
        """Have `hear` called with what workers tell under a topic, in the client's own thread; before
        `start`."""
        self._heard[topic] = hear

    def start(self) -> Client:
        """The client of the cluster, which is started if it was not.

        Raises:
            NoSchedulerError: no scheduler answers.
            ClusterGoneError: none of its workers can stand in for this process.
            PermafrostError: the cluster did not start.
        """
        with self._starting:
            if self._nobody is not None:
                raise self._nobody  # nor would it answer whoever waited meanwhile
            if self._client is None:
                self._client = self._started()
            return self._client

    def _started(self) -> Client:
        began = time.monotonic()
        # What matters of it is said by us.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self._where.scheduler is None:
            scratch = self._open.enter_context(contextlib.ExitStack())
            addresses = json.loads(
                self._open.enter_context(companion(self._program(), self._check_wanted))
            )
            address, dashboard = addresses["scheduler"], addresses["dashboard"]
            # The cluster does that itself, unless it was killed.
            scratch.callback(shutil.rmtree, addresses["scratch"], ignore_errors=True)
        else:
            address, dashboard = self._where.scheduler, None
        client = self._connected(address)
        self._open.callback(client.close, timeout=1)
        for topic, hear in (self._heard | {self.name: partial(self._checked, client)}).items():
            with self._reaching():
                self._subscribe(client, topic, hear)
        self._check(client)
        self._wait_for_workers(client)
        n_threads = f"{self._threads} thread{'s' * (self._threads > 1)}"
        self._display.tell(
            f"after {time.monotonic() - began:.1f} s: "
            f"{len(self.roster.fit)} Dask workers of {n_threads} each; dashboard "
            f"{dashboard or client.dashboard_link}"
        )
        return client

    def _program(self) -> Program:
        runtime = self._context.runtime
        settings = {
            "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100  # "" is the working folder
            "threads": self._threads,
            "workers": self._n_workers,
            "memory": runtime.worker_memory_bytes or "auto",
            # A GPU cannot be used in a fork of a process that has looked for one, as any import may.
            "preload": [] if torch.accelerator.is_available() else [PRELOADED],
        }
        return Program(
            name="the Dask cluster",
            file=cluster_process.__file__,
            arguments=[json.dumps(settings)],
            environment={
                "DASK_LOGGING__DISTRIBUTED": "critical",
                "OMP_NUM_THREADS": str(self._threads),
            },
            patience_s=STARTING_S,
            advice=("is the machine busy? Try again", "--engine prefect needs no cluster"),
        )

    def _connected(self, address: str) -> Client:
        try:
            return Client(address, set_as_default=False, timeout=CONNECT_S)
        except (OSError, TimeoutError, ValueError) as error:
            self._nobody = NoSchedulerError(
                f"no Dask scheduler answers at {address} ({type(error).__name__}: {error}); start one with "
                "'dask scheduler', or let --engine dask start a cluster on this machine"
            )
            raise self._nobody from error

    def _check(self, client: Client) -> None:
        """Have every worker checked, those too that join later."""
        facts, marker = facts_here(), ""
        if replica_of(self._context.home) is None:
            self._context.home.mkdir(parents=True, exist_ok=True)
            path = draft_path(self._context.home.absolute() / "seen-by-workers")
            path.touch()
            self._open.callback(path.unlink, missing_ok=True)
            marker = str(path)
        self._mark = f"permafrost-{digest({**facts, 'home': self._context.url})[:12]}"
        check = WorkerCheck(self._mark, facts, marker, self.name)
        self._open.callback(self._tidy, client, client.unregister_worker_plugin, self.name)
        with self._reaching():
            client.register_plugin(check, name=self.name)

    def _wait_for_workers(self, client: Client) -> None:
        """Wait until the workers that are there are checked, and at least one can be used."""
        there, said = self._there(client), False
        while not self.roster.fit or not there <= self.roster.seen:
            if not there and not said:
                said = True
                where = self._where.scheduler or "the cluster of this run"
                self._display.tell(f"waiting for Dask workers to join {where}")
            time.sleep(POLL_S)
            self._require_scheduler(client)
            there &= self._there(client)
            if there <= self.roster.seen:
                # Not before: the first to answer may be the one that differs.
                self.require_workers()

    def _there(self, client: Client) -> set[str]:
        with self._reaching():
            # Nothing is known of a scheduler that is gone.
            return set(client.scheduler_info(n_workers=-1).get("workers", ()))

    @contextlib.contextmanager
    def _reaching(self) -> Generator[None]:
        """Raises: ClusterGoneError: the scheduler does not answer."""
        try:
            yield
        except (OSError, TimeoutError) as error:
            raise self.gone() from error

    def require_workers(self) -> None:
        """Raises when nothing can be computed any more.

        Raises:
            Stopped: the process was asked to stop.
            ClusterGoneError: the scheduler is gone, or all workers that there were are unlike this process.
        """
        self._require_scheduler(self._client)
        self.roster.require(self._where.scheduler)

    def _require_scheduler(self, client: Client | None) -> None:
        self._check_wanted()
        if client is not None and client.status != "running":
            raise self.gone()

    def give_up(self) -> None:
        """Have everybody who waits for the cluster raise `Stopped`; called in another thread."""
        self._given_up = True

    def _check_wanted(self) -> None:
        STOP.check()
        if self._given_up:
            raise Stopped

    def _tidy(self, client: Client, act: Callable[..., object], *arguments: object) -> None:
        """Leave nothing at a scheduler that outlives us, if it answers."""
        if self._where.scheduler is not None and client.status == "running":
            with contextlib.suppress(Exception):
                act(*arguments)

    def gone(self) -> ClusterGoneError:
        """The scheduler is gone, and what to do."""
        mine = self._where.scheduler is None
        who = "of this run" if mine else self._where.scheduler
        first = "" if mine else "start a scheduler and workers, then "
        return ClusterGoneError(
            f"the Dask scheduler {who} is gone, and with it what its workers were computing; what was "
            f"committed is kept: {first}run the same command again, which goes on from there"
        )

    def needs(self, resources: Resources) -> dict[str, float]:
        """Dask resources of a worker that may have a task: a GPU for the backbone, if any worker of this run
        has or had one."""
        gpu = resources.backbone and self.roster.has_gpus
        if resources.backbone and not gpu and self._where.scheduler is not None:
            self._say_that_any_may_run_it()
        return {self._mark: 1, GPU: 1} if gpu else {self._mark: 1}

    def _say_that_any_may_run_it(self) -> None:
        with self._starting:
            if not self._said_any:
                self._said_any = True
                self._display.tell(
                    f"no Dask worker has the resource {GPU}, so any of them may run the backbone; start "
                    f"those that have a GPU with --resources {GPU}=1"
                )

    def refuse(self, unlike: UnlikeWorkerError) -> None:
        """Give a worker no more nodes: it found other files than we did.

        Raises:
            IdentityMismatchError: there was no other worker.
        """
        client, address = self.start(), unlike.address
        with contextlib.suppress(Exception):
            client.run(_refused, self._mark, workers=[address])
        self.roster.refuse(address, unlike.problem)
        try:
            self.roster.require(self._where.scheduler)
        except ClusterGoneError as error:
            raise IdentityMismatchError(
                f"{unlike.problem} (on the Dask worker {address})"
            ) from error

    def _subscribe(self, client: Client, topic: str, hear: Callable[[Event], None]) -> None:
        client.subscribe_topic(topic, hear)
        self._open.callback(self._tidy, client, client.unsubscribe_topic, topic)

    def _checked(self, client: Client, event: Event) -> None:
        """A worker was checked; in the client's own thread."""
        message = event[1]
        self.roster.checked(message)
        address = message["address"]
        # What the scheduler tells of a worker alone does not name it.
        self._subscribe(client, address, partial(self._changed, address))

    def _changed(self, address: str, event: Event) -> None:
        """Something happened to one worker; in the client's own thread."""
        message = event[1]
        if message.get("action") == "worker-status-change":
            self.roster.changed(address, message["status"])

    def _happened(self, event: Event) -> None:
        """Something happened to a worker of the scheduler; in the client's own thread."""
        message = event[1]
        if message.get("action") == "remove-worker":
            self.roster.removed(message["worker"])

    def _report(self) -> None:
        """Say how much memory workers took, and free what they kept."""
        assert self._client is not None
        workers = self.roster.fit
        peaks: Any = self._client.run(peak_memory, workers=workers, on_error="ignore")
        self._client.run(forget, workers=workers, on_error="ignore")
        self._display.tell(self.roster.needed(peaks))


async def _refused(mark: str, dask_worker: Worker) -> None:
    await set_mark(dask_worker, mark, 0)
