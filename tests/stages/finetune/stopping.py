"""Trainings that are stopped in the middle."""

from permafrost.storage.progress import SilentProgress


class Stopped(Exception):
    """Raised by the progress after some steps."""


class Stopping(SilentProgress):
    """Ends a training in the middle."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, amount: int | float, note: str = "") -> None:
        # Skipped steps are announced at once, with no note.
        self.left -= bool(note)
        if self.left < 0:
            raise Stopped
