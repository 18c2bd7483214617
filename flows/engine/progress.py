"""Progress of many stages at once: bars in a terminal, and progress artifacts in Prefect."""

import contextlib
import contextvars
import math
import threading
import time
from types import TracebackType
from uuid import UUID

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from permafrost.flows.stopping import STOP
from permafrost.flows.terminal import Terminal
from permafrost.storage.quoting import visible

SLOW_S = 2.0
"""Work shorter than this gets no bar of its own and no Prefect artifact."""
ARTIFACT_EVERY_S = 5.0
LAST_S = 1.0
"""Maximum time to wait for the last artifacts to be sent."""


class _RateColumn(ProgressColumn):
    """Units per second, e.g. `6.1k tokens/s`."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        unit = task.fields.get("unit", "")
        if speed is None or not unit:
            return Text("")
        return Text(rate_text(speed, unit), style="progress.data.speed")


def rate_text(per_second: float, unit: str) -> str:
    """A rate for people, e.g. `6.1k tokens/s`; what is slower than one in ten seconds, by the minute."""
    if per_second >= 1000:
        return f"{per_second / 1000:.1f}k {unit}/s"
    return (
        f"{per_second:.1f} {unit}/s" if per_second >= 0.1 else f"{60 * per_second:.1f} {unit}/min"
    )


def duration_text(seconds: float) -> str:
    """A duration for people: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Display:
    """One live display that every running stage draws on; plain lines when there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._nodes: TaskID | None = None
        self.artifacts = ProgressArtifacts()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Display":
        self._open.enter_context(STOP.orderly())
        self._open.enter_context(STOP.last_act(self._bars.stop))
        self._open.enter_context(self.artifacts)
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
        self._open.__exit__(kind, error, trace)

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bars, without interpreting markup: names may contain brackets."""
        self._bars.console.print(Text(visible(text), style), highlight=False)

    def tell(self, text: str, style: str = "") -> None:
        """Say something about the run that is no result: without a terminal it goes where errors go, as
        another program may read what we print."""
        if self.console.is_terminal:
            self.say(text, style)
        else:
            Terminal(stderr=True, soft_wrap=True).print(Text(visible(text), style))

    def begin(self, n_nodes: int) -> None:
        """Show how many of `n_nodes` have ended."""
        self._nodes = self.open("stages", n_nodes, "stages")

    def ended(self, n_nodes: int) -> None:
        """`n_nodes` more have ended."""
        if self._nodes is not None:
            self.move(self._nodes, n_nodes)

    def open(self, description: str, total: float, unit: str) -> TaskID:
        """Add a bar."""
        return self._bars.add_task(visible(description), total=total, unit=unit, note="")

    def move(self, bar: TaskID, amount: float, note: str = "") -> None:
        """Advance a bar."""
        self._bars.update(bar, advance=amount, note=note)

    def close(self, bar: TaskID) -> None:
        """Remove a bar."""
        self._bars.remove_task(bar)


class NodeProgress:
    """Progress of one stage run (storage.progress.Progress), shown once it proves to be slow.

    `start` and `advance` raise `Stopped` once the process was asked to stop, which is where stages end.
    """

    def __init__(self, display: Display, label: str) -> None:
        self._display, self._label = display, label
        self._bar: TaskID | None = None
        self._in_prefect = False
        self._lock = threading.Lock()

    def start(self, task: str, total: int | float, unit: str) -> None:
        """Begin `task` of `total` `unit`s."""
        STOP.check()
        self._total, self._unit, self._done = total, unit, 0.0
        self._started = self._reported = self._printed = time.monotonic()
        self._first: tuple[float, float] | None = None
        if not total:
            # It only waits for something, which is said at once.
            self._printed = -math.inf

    def advance(self, amount: int | float, note: str = "") -> None:
        """`amount` more are done."""
        STOP.check()
        with self._lock:
            self._done += amount
            now = time.monotonic()
            self._first = self._first or (now, self._done)
            if self._bar is None and now - self._started > SLOW_S:
                self._bar = self._display.open(self._label, self._total, self._unit)
                amount = self._done
            if self._bar is not None:
                self._display.move(self._bar, amount, note)
            if self._bar is not None or not self._total:
                self._report(now, note)

    def _report(self, now: float, note: str) -> None:
        share = min(self._done / max(self._total, 1), 1.0)
        if now - self._reported > ARTIFACT_EVERY_S:
            self._reported = now
            self._show_in_prefect(round(100 * share, 1))
        if not self._display.console.is_terminal and now - self._printed > 2 * ARTIFACT_EVERY_S:
            self._printed = now
            said = f"{100 * share:.0f}%{self._speed(now)}" if self._total else note
            self._display.tell(f"  {self._label}: {said}")

    def _speed(self, now: float) -> str:
        """Rate and time left, for the end of a line; empty before there is a rate.

        It counts from the first advance: before that, models are loaded and libraries warm up.
        """
        since, before = self._first or (now, self._done)
        if now <= since or self._done <= before:
            return ""
        rate = (self._done - before) / (now - since)
        left = duration_text((self._total - self._done) / rate)
        return f" ({rate_text(rate, self._unit)}, {left} left)"

    def _show_in_prefect(self, percent: float) -> None:
        self._in_prefect = True
        self._display.artifacts.show(self, self._label, percent)

    def finish(self) -> None:
        """Remove the bar."""
        with self._lock:
            if self._bar is not None:
                self._display.close(self._bar)
                self._bar = None
            if self._in_prefect:
                self._show_in_prefect(100.0)


class ProgressArtifacts:
    """Sends progress to Prefect from a thread; a context manager.

    Only the latest value of each stage is queued, and errors are ignored.
    """

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
        """Queue the progress of `stage`; call it in the thread of its task run. Returns at once."""
        with self._changed:
            # Prefect takes the task run that an artifact belongs to from the context.
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
            # Whatever the error: showing progress must never fail a run.
            with contextlib.suppress(Exception):
                context.run(self._send, stage, label, percent)

    def _send(self, stage: object, label: str, percent: float) -> None:
        # Imported here, as listings use this module too and Prefect takes a second to import.
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import TaskRunContext

        from permafrost.stages.report.markup import literal

        if TaskRunContext.get() is None:
            return
        if (artifact_id := self._artifacts.get(stage)) is not None:
            update_progress_artifact(artifact_id, progress=percent)
            return
        # Prefect shows descriptions as Markdown.
        artifact_id = create_progress_artifact(percent, description=literal(label))
        if isinstance(artifact_id, UUID):
            self._artifacts[stage] = artifact_id
