"""Functions that the Dask workers of a run are asked to compute, and what they tell and come to."""

import contextlib
import queue
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Future
from distributed.client import ClosedClientError, FutureCancelledError
from distributed.scheduler import KilledWorker

from permafrost.flows.engine.cluster import Cluster, Event
from permafrost.flows.engine.in_worker import Line, UnlikeWorkerError
from permafrost.flows.engine.sent import call, sent
from permafrost.flows.graph import Resources
from permafrost.storage.errors import PermafrostError

POLL_S = 0.1
ANSWER_S = 10.0
"""How long a result may take before it is asked whether the scheduler lives."""
ENDED = "ended"
"""What is told of a task at last."""
MAX_BYSTANDING = 3
"""How often a task that Dask gave up is asked for again: it waited at workers that another one killed."""

Told = queue.SimpleQueue[tuple[Any, ...]]
"""What workers tell, as they do: task, verb, arguments (see `Line`)."""
Hear = Callable[..., None]
"""Is given verb and arguments."""


@dataclass
class _Asked:
    label: str
    told: Told
    future: Future | None = None


class BystanderError(Exception):
    """Dask gave up a task because workers were lost at which it waited for another task to end."""


class Tasks:
    """Threads ask for them side by side; each waits for its own.

    Args:
        cluster: that is asked; it is started with the first task.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topic = f"{cluster.name}-tasks"
        self._asked: dict[str, _Asked] = {}
        """Those that somebody waits for."""
        self._bystanders: Counter[str] = Counter()
        """How often a task was given up that no lost worker had begun, by label."""
        cluster.listen(self._topic, self._told)

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
            ClusterGoneError: the scheduler is gone, or there was never a worker that could be used.
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
                    self._cluster.refuse(unlike)
                except BystanderError:
                    continue

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
        client = self._cluster.start()
        task = f"{name}-{uuid.uuid4().hex}"
        line = Line(self._topic, task, self._cluster.name, self._cluster.terminal)
        needs = self._cluster.needs(resources)
        asked = self._asked[task] = _Asked(label, told)
        self._cluster.roster.asked(task, label)
        try:
            asked.future = client.submit(
                call, sent(function, *arguments, line), key=task, pure=False, resources=needs
            )
            asked.future.add_done_callback(lambda _: told.put((task, ENDED)))
            yield task
        except ClosedClientError as error:
            raise self._cluster.gone() from error
        finally:
            del self._asked[task]
            self._cluster.roster.ended(task)
            if asked.future is not None:
                # A worker that computes it learns that nobody waits any more.
                asked.future.release()

    def next(self, told: Told) -> tuple[Any, ...]:
        """What is told next: task, verb, arguments; raises as `require_workers`."""
        while True:
            self._cluster.require_workers()
            with contextlib.suppress(queue.Empty):
                return told.get(timeout=POLL_S)

    def result(self, task: str) -> Any:
        """What a task that has ended came to. Raises as `run`, and what has to be answered by asking again:
        UnlikeWorkerError, after `refuse`, and BystanderError."""
        asked = self._asked[task]
        assert asked.future is not None, "it was submitted"
        try:
            return self._gathered(asked.future)
        except KilledWorker as error:
            n_lost = error.allowed_failures + 1
            # The last one may not have been heard of yet.
            begun = self._cluster.roster.n_lost_with(task)
            if begun < n_lost - 1 and self._bystanders[asked.label] < MAX_BYSTANDING:
                self._bystanders[asked.label] += 1
                raise BystanderError(asked.label) from error
            raise PermafrostError(self._given_up_for(task, n_lost)) from error

    def _gathered(self, future: Future) -> Any:
        """Raises as the task did, or as `require_workers` if the scheduler dies on the way to its result."""
        while True:
            try:
                return future.result(timeout=ANSWER_S)
            except FutureCancelledError as error:
                raise self._cluster.gone() from error
            except OSError as error:
                if future.status == "error":
                    raise  # the task's own
                if not isinstance(error, TimeoutError):
                    raise self._cluster.gone() from error
                self._cluster.require_workers()  # it is only slow

    def _given_up_for(self, task: str, n_lost: int) -> str:
        label = self._asked[task].label
        given_up = (
            f"'{label}' was given up: {n_lost} Dask workers were lost one after another that had it"
        )
        if held := self._cluster.roster.too_much(task):
            return (
                f"{given_up}; the last one held {held}. Set runtime.worker_memory_bytes to more "
                "(--memory-limit of 'dask worker'), use fewer workers, or make the node smaller"
            )
        return (
            f"{given_up}. Not Dask ended them. Did the system, for their memory (dmesg), or does the node "
            "crash? --engine prefect runs it in this process"
        )

    def _told(self, event: Event) -> None:
        """A worker tells something; in the client's own thread."""
        message = event[1]
        if (asked := self._asked.get(message["task"])) is not None:
            self._cluster.roster.told(message["task"], message["worker"], message["peak"])
            asked.told.put((message["task"], *message["what"]))
