"""Reconstruction of another task's texts than those of a pretraining, by epoch: a shift of domain, or not.

FREEZE!, 4.2.3: errors on STS-B's sentences are far above those on train. If they are so from the first epochs
on, and go on falling, encoders are of a domain and not overfitted. We differ: the paper sets them beside the
error on train, whereas ours stand beside that on held-out texts of the pretraining's own, both without
dropout.
A figure is drawn inside `canvas.drawing()`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from permafrost.stages.metrics.records import LAYER_EPOCHS_ELSEWHERE
from permafrost.stages.report.canvas import shortened
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.frame import (
    add_line,
    log_scale,
    marks_of,
    panel_title,
    rows_of_panels,
)
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.pretraining import (
    DEPTHS,
    ElsewhereRun,
    Pretraining,
    PretrainingRun,
    read_by_layer,
)
from permafrost.storage.errors import CorruptDataError

_EARLY = 10
"""The epoch at which the paper looks first."""


@dataclass(frozen=True)
class Elsewhere:
    """The errors of one pretraining on another task's texts."""

    own: Pretraining
    task: str
    mse: Float64[np.ndarray, "n_epochs n_layers"]
    """Of every layer after every epoch."""
    unexplained: tuple[float | None, ...]

    def by_depth(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Error on these texts after every epoch, and how many times that on held-out ones it is: of the
        mean over the layers of a third."""
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        at = 0
        for depth in self.own.depths:
            error = self.mse[:, at : at + len(depth.layers)].mean(1)
            found[depth.name] = error, error / depth.dev_mse
            at += len(depth.layers)
        return found


def read_elsewhere(
    runs: Sequence[PretrainingRun], pretrainings: Sequence[Pretraining]
) -> tuple[Elsewhere, ...]:
    """The errors of those runs that were measured on another task's texts; `pretrainings` are the curves of
    all runs.

    Raises:
        NotFoundError: a file does not exist.
        CorruptDataError: a file lacks a column, or does not have every layer in every epoch.
    """
    pairs = zip(runs, pretrainings, strict=True)
    return tuple(_elsewhere(r.elsewhere, own) for r, own in pairs if r.elsewhere is not None)


def _elsewhere(run: ElsewhereRun, own: Pretraining) -> Elsewhere:
    what, n_layers = f"the error of the pretraining {own.name} on {run.task}", len(own.layers)
    epochs, (mse,) = read_by_layer(run.errors, LAYER_EPOCHS_ELSEWHERE, n_layers, own.name, what)
    if not np.array_equal(epochs, own.epochs):
        raise CorruptDataError(
            f"{run.errors} (pretraining {own.name}) has {len(epochs)} epochs and the history has "
            f"{len(own.epochs)}; pretrain again"
        )
    return Elsewhere(own, run.task, mse.reshape(len(epochs), n_layers), run.unexplained)


def elsewhere_figure(measured: Sequence[Elsewhere]) -> Figure:
    """A row of two panels for each pretraining: the error on the other texts by epoch, by depth of the
    layers, and how many times that on held-out texts it is."""
    names = {name for one in measured for name in one.by_depth()}
    figure, panels = rows_of_panels(marks_of(DEPTHS, names), len(measured))
    for one, (left, right) in zip(measured, panels, strict=True):
        panel_title(left, one.own.name, f"· error on {shortened(one.task, 14)}")
        panel_title(right, "over that on held-out texts")
        for place, (name, (error, ratio)) in enumerate(one.by_depth().items()):
            add_line(left, DEPTHS[name], one.own.epochs, error, place)
            add_line(right, DEPTHS[name], one.own.epochs, ratio, place)
        log_scale(left)
        for axes in (left, right):
            axes.autoscale_view()
    return figure


def elsewhere_description(measured: Sequence[Elsewhere]) -> str:
    """Alternative text of the figure, with the ratios after the first epoch and the last."""
    ends = "; ".join(
        f"{one.own.name} on {one.task}: "
        + ", ".join(
            f"{name} {ratio[-1]:.3g} times held-out after epoch {one.own.epochs[-1]} "
            f"({ratio[0]:.3g} after the first)"
            for name, (_, ratio) in one.by_depth().items()
        )
        for one in measured
    )
    return f"Line charts: error of reconstruction of another task's texts by epoch. {ends}."


def elsewhere_table(one: Elsewhere) -> PlainTable:
    """By third of the layers: by how much, and how many times, the error on the others is above that on
    held-out texts, after the first epoch, the tenth and the last; and the shares of variance that are left of
    both."""
    last = int(one.own.epochs[-1])
    epochs = [1, *([_EARLY] if 1 < _EARLY < last else []), *([last] if last > 1 else [])]
    rows: list[tuple[str, ...]] = []
    at = 0
    for depth in one.own.depths:
        part = slice(at, at + len(depth.layers))
        at = part.stop
        error, ratio = one.by_depth()[depth.name]
        gap = error - depth.dev_mse
        shares = (_mean(one.own.unexplained[part]), _mean(one.unexplained[part]))
        rows.append(
            (
                depth.name,
                depth.extent,
                *(f"{gap[epoch - 1]:.3g}" for epoch in epochs),
                *(f"{ratio[epoch - 1]:.3g}" for epoch in epochs),
                *(DASH if share is None else hundredths(share) for share in shares),
            )
        )
    return PlainTable(
        f"Reconstruction of {one.task} against held-out texts, {one.own.name}",
        (
            "depth",
            "layers",
            *(f"above by, epoch {epoch}" for epoch in epochs),
            *(f"times, epoch {epoch}" for epoch in epochs),
            "variance left × 100, held out",
            f"variance left × 100, {one.task}",
        ),
        tuple(rows),
        n_names=2,
    )


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None
