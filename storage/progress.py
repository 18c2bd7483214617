"""Progress of long tasks, independent of how it is shown."""

from typing import Protocol, runtime_checkable


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
