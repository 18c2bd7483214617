"""Reconstruction by layer: the error of every layer by epoch, and what of its variance is not explained.

FREEZE!, figure 3: errors grow with depth, which may be the size of the states or how well they are
compressed. The share of variance that is not reconstructed tells.
A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.frame import POINTS, WIDTH, panel_title
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.palette import MUTED, SERIES
from permafrost.stages.report.pretraining import Pretraining

_ROW, _FOOT = 158.0, 34.0


def by_layer_figure(pretrainings: Sequence[Pretraining]) -> Figure:
    """A row of two panels for each pretraining.

    The error on held-out texts by epoch, a line for each layer, later layers darker, on a linear axis as in
    the paper; and the share of variance that is left, by layer.
    """
    n = len(pretrainings)
    height = n * _ROW + _FOOT
    figure = Figure(figsize=(WIDTH / POINTS, height / POINTS), dpi=POINTS)
    grid = figure.add_gridspec(
        n,
        2,
        left=0.085,
        right=0.99,
        top=1 - 18 / height,
        bottom=_FOOT / height,
        hspace=0.5,
        wspace=0.19,
    )
    for row, pretraining in enumerate(pretrainings):
        _errors(figure.add_subplot(grid[row, 0]), pretraining, is_last=row == n - 1)
        _unexplained(figure.add_subplot(grid[row, 1]), pretraining, is_last=row == n - 1)
    return figure


def by_layer_description(pretrainings: Sequence[Pretraining]) -> str:
    """Alternative text of the figure: the errors of the first and the last layer. The table has all."""
    ends = "; ".join(
        f"{p.name}, layers {p.layers[0]} and {p.layers[-1]}: {p.dev_mse[-1, 0]:.3g} and "
        f"{p.dev_mse[-1, -1]:.3g}"
        for p in pretrainings
    )
    return f"Line charts: error of reconstruction on held-out texts after the last epoch. {ends}."


def by_layer_table(pretraining: Pretraining) -> PlainTable:
    """Every layer: the epoch that it is kept at, its error there, and the share of variance that is left."""
    kept = [epoch for depth in pretraining.depths for epoch in depth.kept_epochs]
    errors = [error for depth in pretraining.depths for error in depth.kept_dev_mse]
    left = pretraining.unexplained or (None,) * len(kept)
    return PlainTable(
        f"Reconstruction by layer, {pretraining.name}",
        ("layer", "kept epoch", "error, held out", "variance left × 100"),
        tuple(
            (layer, str(epoch), f"{error:.4g}", DASH if share is None else hundredths(share))
            for layer, epoch, error, share in zip(
                pretraining.layers, kept, errors, left, strict=True
            )
        ),
        n_names=1,
    )


def _errors(axes: Axes, pretraining: Pretraining, *, is_last: bool) -> None:
    n = len(pretraining.layers)
    for i in range(n):
        shade = 0.25 + 0.75 * (i + 1) / n
        axes.plot(
            pretraining.epochs,
            pretraining.dev_mse[:, i],
            color=SERIES[0],
            alpha=shade,
            linewidth=1.2,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    panel_title(axes, pretraining.name, "· error, held out")
    if is_last:
        axes.set_xlabel("epoch", color=MUTED)


def _unexplained(axes: Axes, pretraining: Pretraining, *, is_last: bool) -> None:
    known = [(i, x) for i, x in enumerate(pretraining.unexplained) if x is not None]
    if known:
        places, shares = np.array(known).T
        axes.plot(places, 100 * shares, color=SERIES[1], marker="o", markersize=4, linewidth=1.2)
    axes.set_ylim(bottom=0)
    step = -(-len(pretraining.layers) // 8)
    ticks = range(0, len(pretraining.layers), step)
    axes.set_xticks(list(ticks), [drawable(pretraining.layers[i], 8) for i in ticks])
    panel_title(axes, "variance left × 100")
    if is_last:
        axes.set_xlabel("layer", color=MUTED)
