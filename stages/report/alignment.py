"""How far graphs with texts are from graphs in words, by epoch, beside the metric on dev.

The distance is that of a fit with two branches, or of graph token and text: see `ALIGNED`. Source: GT2VEC,
figure 3c. A figure is drawn inside `canvas.drawing()`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from permafrost.stages.metrics.correlations import spearman
from permafrost.stages.metrics.records import ALIGNED, ALIGNMENT
from permafrost.stages.report.cells import Cell, CellResult
from permafrost.stages.report.frame import add_line, marks_of, panel_title, ring, rows_of_panels
from permafrost.stages.report.learning import Run, learning_curves
from permafrost.stages.report.palette import Mark
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.quoting import counted

_LEAST_EPOCHS = 3
"""Of two, ranks agree or disagree wholly."""


@dataclass(frozen=True)
class AlignedRun:
    """The curves of one fit."""

    run: Run
    distance: Float64[np.ndarray, " n_epochs"]
    """After each epoch of the run."""

    @property
    def kept_distance(self) -> float:
        """After the kept epoch."""
        return float(self.distance[self.run.epochs == self.run.kept][0])

    @property
    def nearest(self) -> int:
        """The epoch with the smallest distance, the earliest of equal ones."""
        return int(self.run.epochs[np.argmin(self.distance)])

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of distance and metric on dev over the epochs; negative where one runs
        against the other. None for fewer than three epochs, or where one of the two never changes."""
        known = np.isfinite(self.run.dev_metric) & np.isfinite(self.distance)
        distance, metric = self.distance[known], self.run.dev_metric[known]
        if len(distance) < _LEAST_EPOCHS or not (np.ptp(distance) and np.ptp(metric)):
            return None
        return spearman(distance, metric)

    @property
    def is_nearest_at_peak(self) -> bool:
        """Whether the distance is smallest where the metric is highest; equal ones count."""
        at_peak = self.distance[self.run.dev_metric == np.nanmax(self.run.dev_metric)]
        return bool((at_peak == self.distance.min()).any())

    @property
    def is_monotone(self) -> bool:
        """Whether the distance only falls, or only rises, from epoch to epoch."""
        steps = np.diff(self.distance)
        return bool((steps <= 0).all() or (steps >= 0).all())


@dataclass(frozen=True)
class AlignmentCurve:
    """One method on one task."""

    method: str
    task: str
    metric: str
    runs: tuple[AlignedRun, ...]
    """One per seed."""

    @property
    def verdict(self) -> str:
        """What the paper says of its figure 3c, in counts of fits: distance runs against the metric, is
        smallest at its peak, and does not only fall or rise. Only of fits that could show it: those with a
        correlation."""
        told = [(c, r) for r in self.runs if (c := r.correlation) is not None]
        if not told:
            return (
                "nothing can be said: too few epochs, or one of the two never changes "
                f"({counted(len(self.runs), 'fit')})"
            )
        n = counted(len(told), "fit")
        against = sum(c < 0 for c, _ in told)
        peak = sum(r.is_nearest_at_peak for _, r in told)
        turning = sum(not r.is_monotone for _, r in told)
        rest = len(self.runs) - len(told)
        silent = f"; nothing can be said of {rest} more" if rest else ""
        return (
            f"distance runs against the metric: {against} of {n}; minimum at the peak: {peak} of {n}; "
            f"not monotone: {turning} of {n}{silent}"
        )


def alignment_curves(results: Sequence[CellResult]) -> tuple[AlignmentCurve, ...]:
    """The curves of every method with a distance after each epoch, in the order of the results.

    Raises:
        NotFoundError: a fit has distances and no history.
        CorruptDataError: a file cannot be read, or has other epochs than the history of its fit.
    """
    groups: dict[tuple[str, str, str], list[AlignedRun]] = {}
    for result in results:
        cell = result.cell
        if cell.history is None or not (cell.history.parent / ALIGNMENT).exists():
            continue
        (curve,) = learning_curves([result])
        name = cell.method, cell.task, result.metrics.metric
        groups.setdefault(name, []).append(_aligned(cell, curve.runs[0]))
    return tuple(AlignmentCurve(*name, tuple(runs)) for name, runs in groups.items())


def _aligned(cell: Cell, run: Run) -> AlignedRun:
    assert cell.history is not None
    path = cell.history.parent / ALIGNMENT
    try:
        table = pq.read_table(path, columns=ALIGNED.names).cast(ALIGNED)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptDataError(
            f"{path} ({cell.label}) holds no distances ({error}); delete the artifact and fit it again"
        ) from error
    epochs, distance = (table.column(name).to_numpy() for name in ALIGNED.names)
    if not np.array_equal(epochs, run.epochs):
        raise CorruptDataError(
            f"{path} ({cell.label}) has the epochs {epochs.tolist()}, but the history of the fit has "
            f"{run.epochs.tolist()}; delete the artifact and fit it again"
        )
    return AlignedRun(run, distance)


def alignment_description(curves: Sequence[AlignmentCurve]) -> str:
    """Alternative text of the figure: distance and metric at the kept epoch of every fit."""
    kept = "; ".join(
        f"{c.method} on {c.task} "
        + ", ".join(
            f"{r.kept_distance:.3f} with {r.run.kept_metric:.1%} at epoch {r.run.kept}, nearest at epoch "
            f"{r.nearest}"
            for r in c.runs
        )
        for c in curves
    )
    return (
        "Line charts against epochs, for each task: distance between the two embeddings of a case (of graph "
        "with text and of graph in words, or of graph token and text), and the metric, both on dev. "
        f"Kept, by seed: {kept}."
    )


def alignment_figure(curves: Sequence[AlignmentCurve], marks: Mapping[str, Mark]) -> Figure:
    """Distance and metric on dev by epoch, a row per task: means over seeds with the range of the seeds.

    A ring marks the epoch that a fit kept. Metrics are times 100.
    """
    shown = marks_of(dict(marks), {c.method for c in curves})
    rows = list(dict.fromkeys((c.task, c.metric) for c in curves))
    figure, panels = rows_of_panels(shown, len(rows))
    for (task, metric), (left, right) in zip(rows, panels, strict=True):
        by_method = {c.method: c for c in curves if (c.task, c.metric) == (task, metric)}
        panel_title(left, task, "· distance on dev")
        panel_title(right, f"{metric} on dev × 100")
        for place, name in enumerate(reversed([n for n in shown if n in by_method])):
            runs, mark = by_method[name].runs, marks[name]
            _draw(left, mark, place, runs, [r.distance for r in runs])
            _draw(right, mark, place, runs, [100 * r.run.dev_metric for r in runs])
            for r in runs:
                ring(left, r.run.kept, r.kept_distance, mark.colour, 8)
                ring(right, r.run.kept, 100 * r.run.kept_metric, mark.colour, 8)
        for axes in (left, right):
            axes.autoscale_view()
    return figure


def _draw(
    axes: Axes,
    mark: Mark,
    place: int,
    runs: Sequence[AlignedRun],
    values: Sequence[Float64[np.ndarray, " _"]],
) -> None:
    # Up to the last epoch that every seed has; a seed that trained longer goes on as a thin line.
    n = min(len(r.run.epochs) for r in runs)
    epochs, common = runs[0].run.epochs[:n], np.stack([v[:n] for v in values])
    axes.fill_between(
        epochs, common.min(0), common.max(0), color=mark.colour, alpha=0.14, linewidth=0
    )
    for r, of_run in zip(runs, values, strict=True):
        if len(of_run) > n:
            axes.plot(
                r.run.epochs[n - 1 :],
                of_run[n - 1 :],
                color=mark.colour,
                linewidth=0.8,
                alpha=0.7,
            )
    add_line(axes, mark, epochs, common.mean(0), place)
