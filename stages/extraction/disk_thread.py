"""The thread that writes while the backbone computes."""

import queue
import threading
from collections.abc import Callable

from permafrost.storage.features.writing import SegmentFill

IN_FLIGHT = 3
"""Batches of captured rows that exist at a time, at most: one is computed, one waits, one is written."""


class DiskThread:
    """Does the writing in order, at most one job behind the compute; its first error stops the run.

    Commits run here too, so the next segment computes while the last one is flushed. Once a job is
    accepted, all but the last `IN_FLIGHT - 1` are done, and what they read may be written over.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=IN_FLIGHT - 2)
        self._fills: list[SegmentFill] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="permafrost-disk", daemon=True)

    def owns(self, fill: SegmentFill) -> None:
        """Drop `fill` at the end unless it was committed."""
        self._fills = [f for f in self._fills if f.is_open]
        self._fills.append(fill)

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; waits while the disk is behind.

        Raises:
            Exception: whatever an earlier job failed with.
        """
        if self._error is not None:
            raise self._error
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error
            # Or it, and all it holds, would live until the next one comes.
            del job

    def __enter__(self) -> "DiskThread":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._jobs.put(None)
        self._thread.join()
        for fill in self._fills:
            fill.abandon()
        if self._error is not None and error is None:
            raise self._error
