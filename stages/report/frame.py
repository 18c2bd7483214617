"""What the figures share: their width, a legend along the top, and lines drawn as marks.

A figure is drawn inside `canvas.drawing()`. Lengths are points.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.palette import INK, PAPER, Mark

WIDTH = 480.0
POINTS = 72.0
DASHES = (5.0, 3.0)
"""Of lines that compare: a majority rate, a uniform weight."""

_COLUMNS = ((12, 4), (22, 3), (38, 2))
"""Characters of the longest name in a legend to the names that stand side by side."""


def framed(height: float, marks: dict[str, Mark], compared: Sequence[str]) -> tuple[Figure, float]:
    """A figure with its legend along the top, and where the room below the legend ends (0 to 1).

    Args:
        height: of the whole figure.
        marks: what the lines mean, by name.
        compared: names of dashed lines, behind the marks.
    """
    figure = Figure(figsize=(WIDTH / POINTS, height / POINTS), dpi=POINTS)
    handles = [line(mark, np.zeros(0), np.zeros(0)) for mark in marks.values()]
    for _ in compared:
        handles.append(Line2D([], [], color=INK, linewidth=0.9))
        handles[-1].set_dashes(DASHES)
    names = _shown_names([*marks, *compared])
    figure.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=_n_across(names),
        fontsize=9.5,
        handlelength=2.4,
        columnspacing=1.4,
        labelspacing=0.35,
        borderaxespad=0.2,
    )
    return figure, 1 - legend_height([*marks, *compared]) / height


def legend_height(names: Sequence[str]) -> float:
    """Room that a legend of these names takes."""
    shown = _shown_names(names)
    return -(-len(shown) // _n_across(shown)) * 14.5 + 10


def line(mark: Mark, x: np.ndarray, y: np.ndarray, *, small: bool = False) -> Line2D:
    """Points joined in the manner of a method or control."""
    drawn = Line2D(
        x,
        y,
        color=mark.colour,
        marker=mark.marker,
        markersize=4 if small else 6,
        markerfacecolor=mark.colour if mark.filled else PAPER,
        markeredgecolor=mark.colour,
        linewidth=1.2 if small else 1.6,
        zorder=3 if mark.dashes else 4,
    )
    if mark.dashes:
        drawn.set_dashes(mark.dashes)
    return drawn


def of(marks: dict[str, Mark], names: set[str]) -> dict[str, Mark]:
    """The marks of these names, in their order."""
    return {name: mark for name, mark in marks.items() if name in names}


def _shown_names(names: Sequence[str]) -> list[str]:
    return [drawable(name, _COLUMNS[-1][0]) for name in names]


def _n_across(names: Sequence[str]) -> int:
    longest = max(map(len, names), default=0)
    return next((n for most, n in _COLUMNS if longest <= most), 1)
