"""Segments of an extraction are computed by Dask workers; who holds the store's lease commits them."""

import contextlib
from collections.abc import Generator, Iterable

from permafrost.flows.context import RunContext
from permafrost.flows.engine.asking import ENDED, BystanderError, Tasks, Told
from permafrost.flows.engine.cluster import Cluster
from permafrost.flows.engine.hearing import log
from permafrost.flows.engine.in_worker import UnlikeWorkerError, compute_segment_here
from permafrost.flows.graph import Resources
from permafrost.stages.extraction.segment_pool import SegmentTask
from permafrost.storage.features.segment_drafts import SealedSegment
from permafrost.storage.progress import Progress

WAITING = 2
"""Segments under way for each worker: while one is computed, the next one is on its way."""


class SegmentsInWorkers:
    """See `SegmentPool`. A worker that is lost costs the segment it had: Dask gives it to another."""

    def __init__(self, cluster: Cluster, tasks: Tasks, context: RunContext) -> None:
        self._cluster, self._tasks, self._context = cluster, tasks, context

    def compute(self, tasks: Iterable[SegmentTask], progress: Progress) -> Generator[SealedSegment]:
        """See `SegmentPool`; at most `WAITING` segments for each worker are laid out ahead."""
        told, left = Told(), iter(tasks)
        asked: dict[str, tuple[SegmentTask, contextlib.ExitStack]] = {}
        done: dict[str, float] = {}
        """Tokens of each task that its worker has told of."""
        again: list[SegmentTask] = []
        try:
            while True:
                while len(asked) < WAITING * self._cluster.n_workers:
                    task = again.pop() if again else next(left, None)
                    if task is None:
                        break
                    self._ask(task, told, asked)
                if not asked:
                    return
                id, verb, *arguments = self._tasks.next(told)
                match verb:
                    case "start":
                        # Not for the first time, if the worker that had it was lost.
                        progress.advance(-done.pop(id, 0.0))
                    case "advance":
                        done[id] = done.get(id, 0.0) + arguments[0]
                        progress.advance(*arguments)
                    case "log":
                        log(*arguments)
                    case ended if ended == ENDED:
                        task, open_ = asked.pop(id)
                        with open_:
                            sealed = self._sealed(id, task, again)
                        if sealed is not None:
                            yield sealed
        finally:
            for _, open_ in asked.values():
                open_.close()

    def _ask(
        self,
        task: SegmentTask,
        told: Told,
        asked: dict[str, tuple[SegmentTask, contextlib.ExitStack]],
    ) -> None:
        open_ = contextlib.ExitStack()
        id = open_.enter_context(
            self._tasks.asking(
                compute_segment_here,
                (task, self._context.url, self._context.runtime),
                "segment",
                task.label,
                Resources(backbone=True),
                told,
            )
        )
        asked[id] = task, open_

    def _sealed(self, id: str, task: SegmentTask, again: list[SegmentTask]) -> SealedSegment | None:
        try:
            return self._tasks.result(id)
        except UnlikeWorkerError as unlike:
            self._cluster.refuse(unlike)
        except BystanderError:
            pass
        again.append(task)
        return None
