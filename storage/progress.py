"""Progress of long tasks, independent of how it is shown."""

import time
from typing import Protocol, runtime_checkable

WAIT = "wait"
"""The task of waiting until another process has ended."""


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of one long task; the caller decides how to show it."""

    def start(self, task: str, total: int | float, unit: str) -> None:
        """Begin `task` of `total` `unit`s (tokens, steps, bytes)."""
        ...

    def advance(self, amount: int | float, note: str = "") -> None:
        """`amount` more units are done; `note` is a short value such as a loss."""
        ...

    def finish(self) -> None:
        """The task is over, even if it failed."""
        ...


class SilentProgress:
    """Shows nothing."""

    def start(self, task: str, total: int | float, unit: str) -> None:
        """Ignore the start."""

    def advance(self, amount: int | float, note: str = "") -> None:
        """Ignore the step."""

    def finish(self) -> None:
        """Ignore the end."""


class Waits:
    """Passes progress on, and measures how long of it another process was waited for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._since: float | None = None
        self.seconds = 0.0
        """Of all waits that are over."""

    def start(self, task: str, total: int | float, unit: str) -> None:
        """Pass it on; a wait begins, or is over."""
        self._end()
        if task == WAIT:
            self._since = time.monotonic()
        self._progress.start(task, total, unit)

    def advance(self, amount: int | float, note: str = "") -> None:
        """Pass it on."""
        self._progress.advance(amount, note)

    def finish(self) -> None:
        """Pass it on; a wait is over."""
        self._end()
        self._progress.finish()

    def _end(self) -> None:
        if self._since is not None:
            self.seconds += time.monotonic() - self._since
            self._since = None
