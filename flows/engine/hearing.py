"""What Dask workers tell of their tasks, on this side: progress and logs."""

import logging
from typing import Any

from prefect.logging import get_run_logger

from permafrost.storage.progress import Progress


class Heard:
    """What a worker tells of a node, as progress and logs of the task run in whose thread it is called."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started = False

    def __call__(self, what: str, *arguments: Any) -> None:
        match what:
            case "start":
                self.end()  # of a worker that was lost
                self._started = True
                self._progress.start(*arguments)
            case "advance" if self._started:
                self._progress.advance(*arguments)
            case "finish":
                self.end()
            case "log":
                log(*arguments)

    def end(self) -> None:
        """Nothing more is to come."""
        if self._started:
            self._started = False
            self._progress.finish()


def log(level: int, name: str, message: str) -> None:
    """Pass on what was logged elsewhere: to Prefect, which prints it too if its level says so."""
    run = get_run_logger()
    if run.isEnabledFor(level):
        run.log(level, "%s: %s", name, message)
    if not logging.getLogger("prefect").isEnabledFor(level):
        logging.getLogger(name).log(level, message)


def log_failure(label: str, error: Exception) -> None:
    """Log what a node raised in a worker, and where: Prefect's state of a task run has the message only."""
    get_run_logger().error("%s failed in a worker", label, exc_info=error)
