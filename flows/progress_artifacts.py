"""Progress artifacts in Prefect, sent by a thread of their own: a stage never waits for a server."""

import contextlib
import contextvars
import threading
from types import TracebackType
from uuid import UUID

LAST_S = 1.0
"""How long to wait, at most, until the last ones are sent."""


class ProgressArtifacts:
    """Use as a context manager. Of each stage only the latest figure waits to be sent; errors are dropped."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[contextvars.Context, str, float]] = {}
        self._artifacts: dict[object, UUID] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def __enter__(self) -> "ProgressArtifacts":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None and error is None:
            self._thread.join(LAST_S)

    def show(self, stage: object, label: str, percent: float) -> None:
        """Have the progress of `stage` shown; called in the thread of its task run, and returns at once."""
        with self._changed:
            # The task run that an artifact belongs to is found in the context.
            self._waiting[stage] = (contextvars.copy_context(), label, percent)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_all, name="permafrost-progress", daemon=True
                )
                self._thread.start()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                stage, (context, label, percent) = self._waiting.popitem()
            # Whatever it is: a picture of the progress is not worth a run.
            with contextlib.suppress(Exception):
                context.run(self._send, stage, label, percent)

    def _send(self, stage: object, label: str, percent: float) -> None:
        # Imported here: the listings use this module too, and Prefect takes a second to import.
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import TaskRunContext

        from permafrost.stages.report.markup import literal

        if TaskRunContext.get() is None:
            return
        if (known := self._artifacts.get(stage)) is not None:
            update_progress_artifact(known, progress=percent)
            return
        # Prefect shows descriptions as Markdown.
        made = create_progress_artifact(percent, description=literal(label))
        if isinstance(made, UUID):
            self._artifacts[stage] = made
