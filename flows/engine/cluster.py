"""The Dask workers of one run: found or started when a node has to be computed, checked, and watched."""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from distributed import Client, Future, Worker
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from permafrost.flows.companion import Program, companion
from permafrost.flows.context import RunContext
from permafrost.flows.engine import cluster_process
from permafrost.flows.engine.choice import Dask
from permafrost.flows.engine.in_worker import (
    Line,
    UnlikeWorkerError,
    forget,
    peak_memory,
    threads_of_workers,
)
from permafrost.flows.engine.prefect import ClusterGoneError
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.worker_check import WorkerCheck, facts_here, set_mark
from permafrost.flows.graph import Resources
from permafrost.flows.stopping import STOP, Stopped
from permafrost.storage.drafts import remove_drafts_of_dead_processes
from permafrost.storage.durable import draft_path
from permafrost.storage.errors import IdentityMismatchError, InputError, PermafrostError
from permafrost.storage.keys import digest
from permafrost.storage.replica import replica_of

CONNECT_S = 10.0
"""How long a scheduler may take to answer."""
STARTING_S = 120.0
"""How long a cluster on this machine may take to start."""
POLL_S = 0.1
PRELOADED = "permafrost.flows.engine.preloaded"
"""What workers of a cluster of ours have imported when they start."""
GPU = "GPU"
"""Dask resource of workers that are to have what runs the backbone."""
ENDED = "ended"
"""What is told of a task at last."""

Told = queue.SimpleQueue[tuple[Any, ...]]
"""What workers tell, as they do: task, verb, arguments (see `Line`)."""
Hear = Callable[..., None]
"""Is given verb and arguments."""


@dataclass
class _Asked:
    label: str
    told: Told
    future: Future | None = None


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
        self._run = uuid.uuid4().hex[:12]
        self._name = f"permafrost-{self._run}"
        self._mark = ""
        self._asked: dict[str, _Asked] = {}
        """Tasks that somebody waits for."""
        self._fit: dict[str, set[str]] = {}
        """Workers that can stand in for this process, by address, and their Dask resources."""
        self._refused: dict[str, str] = {}
        """Why others cannot, by address."""
        self._n_lost = 0
        self._given_up = False

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
        if self._n_lost:
            remove_drafts_of_dead_processes(self._context.home)

    @property
    def n_workers(self) -> int:
        """Workers that take nodes now; of a cluster that was not needed yet how many there will be."""
        if self._client is None and self._where.scheduler is None:
            return self._n_workers
        return max(1, len(self._fit))

    def start(self) -> Client:
        """The client of the cluster, which is started if it was not.

        Raises:
            InputError: no scheduler answers, or none of its workers can stand in for this process.
            PermafrostError: the cluster did not start.
        """
        with self._starting:
            if self._client is None:
                self._client = self._started()
            return self._client

    def _started(self) -> Client:
        began = time.monotonic()
        # What matters of it is said by us.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self._where.scheduler is None:
            addresses = json.loads(
                self._open.enter_context(companion(self._program(), self._check_wanted))
            )
            address, dashboard = addresses["scheduler"], addresses["dashboard"]
        else:
            address, dashboard = self._where.scheduler, None
        client = self._connected(address)
        self._open.callback(client.close, timeout=1)
        for topic, hear in ((self._name, self._told), ("all", self._happened)):
            client.subscribe_topic(topic, hear)
            self._open.callback(self._tidy, client, client.unsubscribe_topic, topic)
        self._check(client)
        self._wait_for_workers(client)
        n_threads = f"{self._threads} thread{'s' * (self._threads > 1)}"
        self._display.tell(
            f"after {time.monotonic() - began:.1f} s: "
            f"{len(self._fit)} Dask workers of {n_threads} each; dashboard "
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
            raise InputError(
                f"no Dask scheduler answers at {address} ({type(error).__name__}: {error}); start one with "
                "'dask scheduler', or let --engine dask start a cluster on this machine"
            ) from error

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
        check = WorkerCheck(self._mark, facts, marker, self._name)
        self._open.callback(self._tidy, client, client.unregister_worker_plugin, self._name)
        client.register_plugin(check, name=self._name)

    def _wait_for_workers(self, client: Client) -> None:
        """Wait until the workers that are there are checked, and at least one can be used."""
        there = set(client.scheduler_info(n_workers=-1)["workers"])
        said = False
        while not self._fit or not there <= self._fit.keys() | self._refused.keys():
            self.require_workers()
            if not there and not said:
                said = True
                self._display.tell(f"waiting for Dask workers to join {self._where.scheduler}")
            time.sleep(POLL_S)
            there &= set(client.scheduler_info(n_workers=-1)["workers"])

    def require_workers(self) -> None:
        """Raises when nothing can be computed any more.

        Raises:
            Stopped: the process was asked to stop.
            ClusterGoneError: the scheduler is gone, or all workers are unlike this process.
        """
        self._check_wanted()
        if self._client is not None and self._client.status != "running":
            raise ClusterGoneError(self._gone())
        if self._refused and not self._fit:
            raise ClusterGoneError(
                "no Dask worker can stand in for this process: "
                + "; ".join(f"{name} {why}" for name, why in self._refused.items())
                + ". Start workers in the same environment, with the same files"
            )

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

    def _gone(self) -> str:
        who = self._where.scheduler or "of this run"
        return (
            f"the Dask scheduler {who} is gone, and with it what its workers were computing; what was "
            "committed is kept"
        )

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        name: str,
        label: str,
        resources: Resources,
        hear: Hear,
    ) -> Any:
        """What `function(*arguments, line)` returns in a worker; waits for it.

        Args:
            function: importable in a worker.
            arguments: what is sent.
            name: what Dask calls such tasks, in the dashboard too.
            label: what people call this one.
            resources: what it needs.
            hear: called in this thread with what the worker tells.

        Raises:
            ClusterGoneError: the scheduler is gone, or no worker is left that could be used.
            PermafrostError: workers were lost one after the other while they ran it; or as `function`.
        """
        told = Told()
        while True:
            with self.asking(function, arguments, name, label, resources, told) as task:
                while (what := self.next(told))[1] != ENDED:
                    hear(*what[1:])
                try:
                    return self.result(task)
                except UnlikeWorkerError as unlike:
                    self.refuse(unlike)

    @contextlib.contextmanager
    def asking(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        name: str,
        label: str,
        resources: Resources,
        told: Told,
    ) -> Generator[str]:
        """Have a task computed; given up with the block. See `run`.

        Args:
            told: where what the worker tells is put, the id of the task first, and `ENDED` at last.
        """
        client = self.start()
        task = f"{name}-{uuid.uuid4().hex}"
        line = Line(self._name, task, self._name)
        self._asked[task] = _Asked(label, told)
        future = client.submit(
            function, *arguments, line, key=task, pure=False, resources=self._needs(resources)
        )
        self._asked[task].future = future
        future.add_done_callback(lambda _: told.put((task, ENDED)))
        try:
            yield task
        finally:
            del self._asked[task]
            # A worker that computes it learns that nobody waits any more.
            future.release()

    def next(self, told: Told) -> tuple[Any, ...]:
        """What is told next: task, verb, arguments; raises as `require_workers`."""
        while True:
            self.require_workers()
            with contextlib.suppress(queue.Empty):
                return told.get(timeout=POLL_S)

    def result(self, task: str) -> Any:
        """What a task that has ended came to. Raises as `run`, and UnlikeWorkerError."""
        asked = self._asked[task]
        assert asked.future is not None, "it was submitted"
        try:
            return asked.future.result(timeout=CONNECT_S)
        except FutureCancelledError as error:
            raise ClusterGoneError(self._gone()) from error
        except KilledWorker as error:
            limit = self._memory_limit()
            raise PermafrostError(
                f"'{asked.label}' was given up: {error.allowed_failures + 1} Dask workers were lost one "
                f"after another while they had it. Did they need more than their memory{limit}? "
                "Set runtime.worker_memory_bytes, or use fewer workers"
            ) from error

    def _needs(self, resources: Resources) -> dict[str, float]:
        """Dask resources of a worker that may have a task: a GPU for the backbone, if any worker has one."""
        gpu = resources.backbone and GPU in set().union(*self._fit.values())
        return {self._mark: 1, GPU: 1} if gpu else {self._mark: 1}

    def _memory_limit(self) -> str:
        client = self.start()
        with contextlib.suppress(Exception):
            found = client.scheduler_info(n_workers=-1)["workers"].values()
            return f" ({min(w['memory_limit'] for w in found) / 1e9:.1f} GB)"
        return ""

    def refuse(self, unlike: UnlikeWorkerError) -> None:
        """Give a worker no more nodes: it found other files than we did.

        Raises:
            IdentityMismatchError: no other worker is left.
        """
        client, address = self.start(), unlike.address
        with contextlib.suppress(Exception):
            client.run(_refused, self._mark, workers=[address])
        self._fit.pop(address, None)
        self._told_of_worker({"address": address, "host": "", "problem": unlike.problem})
        if not self._fit:
            raise IdentityMismatchError(f"{unlike.problem} (on the Dask worker {address})")

    def _told(self, event: tuple[float, dict[str, Any]]) -> None:
        """A worker tells something; in the client's own thread."""
        message = event[1]
        if message["told"] == "worker":
            self._told_of_worker(message)
        elif (asked := self._asked.get(message["task"])) is not None:
            asked.told.put((message["task"], *message["what"]))

    def _told_of_worker(self, message: dict[str, Any]) -> None:
        address, problem = message["address"], message["problem"]
        if not problem:
            self._refused.pop(address, None)
            self._fit[address] = set(message["resources"])
        elif address not in self._refused:
            where = f" on {message['host']}" if message["host"] else ""
            self._refused[address] = problem
            self._display.tell(f"refused the Dask worker {address}{where}: it {problem}", "red")

    def _happened(self, event: tuple[float, dict[str, Any]]) -> None:
        """Something happened to a worker of the scheduler; in the client's own thread."""
        message = event[1]
        if message.get("action") != "remove-worker":
            return
        address = message["worker"]
        self._refused.pop(address, None)
        if address not in self._fit:
            return
        self._fit.pop(address, None)
        self._n_lost += 1
        running = [self._asked[t].label for t in message["processing-tasks"] if t in self._asked]
        what = f" while it had '{running[0]}', which goes to another" if running else ""
        self._display.tell(f"lost the Dask worker {address}{what}", "yellow")

    def _report(self) -> None:
        """Say how much memory workers took, and free what they kept."""
        assert self._client is not None
        workers = sorted(self._fit)
        peaks: Any = self._client.run(peak_memory, workers=workers, on_error="ignore")
        self._client.run(forget, workers=workers, on_error="ignore")
        taken = ", ".join(f"{peak / 1e9:.2f}" for peak, _ in peaks.values())
        limits = [limit for _, limit in peaks.values() if limit]
        most = f" of at most {min(limits) / 1e9:.1f} GB each" if limits else " GB, not bounded"
        self._display.tell(f"memory of {len(peaks)} Dask workers at its peak: {taken}{most}")


async def _refused(mark: str, dask_worker: Worker) -> None:
    await set_mark(dask_worker, mark, 0)
