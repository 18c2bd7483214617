"""What runs in a Dask worker: one node, whose progress and logs are told to the process that asked."""

import contextlib
import logging
import resource
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from distributed import get_worker

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.engine import make
from permafrost.flows.graph import Node
from permafrost.flows.stage import stage_of
from permafrost.flows.stopping import Stopped
from permafrost.stages.extraction.segment_pool import SegmentTask, compute_segment
from permafrost.storage.errors import IdentityMismatchError, InputError, PermafrostError
from permafrost.storage.features.receipts import committed_arrays
from permafrost.storage.features.segment_drafts import SealedSegment
from permafrost.storage.fingerprint import other_code
from permafrost.storage.quoting import quoted

TOLD_EVERY_S = 0.2
"""Progress is told at most this often."""


class UnlikeWorkerError(PermafrostError):
    """A worker found other files than the process that asked; another worker may find the same."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(address, problem)
        self.address, self.problem = address, problem


@dataclass(frozen=True)
class Line:
    """To whom a worker tells how a task of a run gets on."""

    topic: str
    """Of the run."""
    task: str
    check: str
    """Name of the check that the run has put on its workers (worker_check)."""
    terminal: Literal["ours", "its own"]
    """Whose standard error a worker's is."""

    def tell(self, *what: Any) -> None:
        """Strings and numbers only."""
        worker = get_worker()
        message = {
            "task": self.task,
            "what": list(what),
            "worker": worker.address,
            "peak": peak_memory(),
        }
        worker.log_event(self.topic, message)

    def require_asked_for(self) -> None:
        """Raises: Stopped: nobody waits for the task any more; the run has ended, or its process has."""
        check: Any = get_worker().plugins.get(self.check)
        if check is None or self.task in check.cancelled:
            raise Stopped

    @contextlib.contextmanager
    def logs(self) -> Generator[None]:
        """Warnings and errors that are logged inside the block, in this thread, are told; and not printed
        here, too, by a handler that a library or a plug-in has set up, where that is the same terminal."""
        root, handler = logging.getLogger(), _Logs(self)
        others = root.handlers[:] if self.terminal == "ours" else []
        for other in others:
            other.addFilter(handler.leaves)
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
            for other in others:
                other.removeFilter(handler.leaves)


class _Logs(logging.Handler):
    def __init__(self, line: Line) -> None:
        super().__init__(logging.WARNING)
        self._line, self._thread = line, threading.get_ident()

    def leaves(self, record: logging.LogRecord) -> bool:
        """Whether a record is for others."""
        ours = record.thread == self._thread and not record.name.startswith("distributed")
        return record.levelno < self.level or not ours

    def emit(self, record: logging.LogRecord) -> None:
        if not self.leaves(record):
            self._line.tell("log", record.levelno, record.name, record.getMessage())


class ToldProgress:
    """Progress (storage.progress.Progress) that is told to the process that asked for the task.

    `start` and `advance` raise `Stopped` once nobody waits for it.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiting, self._note, self._told = 0.0, "", 0.0
        self._lock = threading.Lock()

    def start(self, task: str, total: int | float, unit: str) -> None:
        """Begin `task` of `total` `unit`s."""
        self._line.require_asked_for()
        self._told = time.monotonic()
        self._line.tell("start", task, total, unit)

    def advance(self, amount: int | float, note: str = "") -> None:
        """`amount` more are done."""
        self._line.require_asked_for()
        with self._lock:
            self._waiting += amount
            self._note = note
            if time.monotonic() - self._told > TOLD_EVERY_S:
                self._tell()

    def finish(self) -> None:
        """The task is over."""
        with self._lock:
            self._tell()
        self._line.tell("finish")

    def _tell(self) -> None:
        self._line.tell("advance", self._waiting, self._note)
        self._waiting, self._told = 0.0, time.monotonic()


_CONTEXTS: dict[tuple[str, RunRuntime], RunContext] = {}
"""The one of the run that this worker works for: its corpora are read once, and its backbone is kept."""


def context_here(home: str, runtime: RunRuntime) -> RunContext:
    """The context of a run in this process, which knows what others have published since."""
    known = _CONTEXTS.get((home, runtime))
    if known is None:
        _CONTEXTS.clear()
        known = _CONTEXTS[home, runtime] = RunContext(home, runtime)
    else:
        known.refresh()
    return known


def threads_of_workers(runtime: RunRuntime) -> int:
    """torch's threads in each worker: fixed for a run, whatever the load, as other sums round otherwise."""
    return runtime.threads or 1


def compute(node: Node, home: str, runtime: RunRuntime, line: Line) -> None:
    """Compute a node and publish it, unless a worker that was lost had done so.

    Raises:
        UnlikeWorkerError: the backbone that this worker finds is another one.
    """
    line.tell("begin")
    context = context_here(home, runtime)
    if stage_of(node).is_done(node, context):
        return
    torch.set_num_threads(threads_of_workers(runtime))
    with line.logs(), errors_located():
        if (other := other_code(node.code)) is not None:
            raise UnlikeWorkerError(
                get_worker().address,
                f"has another {other} than this process, or none",
            )
        make(node, context, ToldProgress(line), _this_worker())


def compute_segment_here(
    task: SegmentTask, home: str, runtime: RunRuntime, line: Line
) -> SealedSegment:
    """Compute a segment of an extraction up to a sealed draft, with the backbone that is kept here.

    Raises:
        UnlikeWorkerError: the backbone that this worker finds is another one.
        Stopped: the segment is committed; the worker that computed it was lost before Dask knew that nobody
            waits for it any more.
    """
    line.tell("begin")
    if committed_arrays(task.cells.root, task.cells.segment).issuperset(task.cells.arrays):
        raise Stopped
    context = context_here(home, runtime)
    torch.set_num_threads(threads_of_workers(runtime))
    with line.logs(), errors_located():
        progress = ToldProgress(line)
        progress.start("segment", task.n_tokens, "tokens")
        load = partial(context.backbone.load, progress=progress)
        try:
            sealed = compute_segment(task, load, progress)
        finally:
            context.backbone.release()
        progress.finish()
        return replace(sealed, provenance={**sealed.provenance, **_this_worker()})


def _this_worker() -> dict[str, str]:
    """For provenance: the name that it was given, else its address."""
    return {"worker": str(get_worker().name)}


@contextlib.contextmanager
def errors_located() -> Iterator[None]:
    """Say of an error which worker met it, where that may matter."""
    worker = get_worker()
    try:
        yield
    except IdentityMismatchError as error:
        differing = " and ".join(
            f"finds a backbone of {field} {quoted(here)} where this process has {quoted(wanted)}"
            for field, wanted, here in error.differing
        )
        raise UnlikeWorkerError(worker.address, differing or str(error)) from error
    except InputError:
        raise
    except Exception as error:
        error.add_note(f"on worker {worker.name} at {worker.address}")
        raise


def forget() -> None:
    """A run has ended: free what it kept here."""
    _CONTEXTS.clear()


def peak_memory() -> int:
    """Bytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
