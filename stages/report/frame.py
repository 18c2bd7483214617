"""Parts shared by the figures: width, a legend along the top, lines with markers, panels over epochs.

A figure is drawn inside `canvas.drawing()`. Lengths are points.
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.gridspec import SubplotSpec
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.palette import INK, MUTED, PAPER, Mark

WIDTH = 480.0
POINTS = 72.0
MOST = 100.0
"""No metric is higher, shown times 100: neither bars nor axes go on."""
DASHES = (5.0, 3.0)
"""Dash pattern of reference lines, e.g. a majority rate or a uniform weight."""
_COLUMNS = ((12, 4), (22, 3), (38, 2))
"""(Length of the longest name in a legend, columns of the legend): the first row that fits is used."""
_ROW = 158.0
NOTE_SIZE, NOTE_LINE = 8.0, 12.0
"""Of the lines below a figure: their font, and the height of each."""
_SHORTEST = 12
"""Characters that are always left of a name."""
_N_MARKERS = 6
"""Maximum markers along a line; a marker at each of a hundred epochs would hide it."""


def framed(height: float, marks: dict[str, Mark], compared: Sequence[str]) -> tuple[Figure, float]:
    """A figure with its legend along the top, and the top of the space below the legend (0 to 1).

    Args:
        height: height of the whole figure.
        marks: how each name is drawn.
        compared: names of dashed reference lines, listed after the marks.
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
    """Height of a legend of these names."""
    shown = _shown_names(names)
    return -(-len(shown) // _n_across(shown)) * 14.5 + 10


def wrapped(text: str, n_chars: int, n_lines: int) -> list[str]:
    """A user's text in lines of so many characters, broken between words; the last one is shortened."""
    parts = textwrap.wrap(text, n_chars, max_lines=n_lines, placeholder="…")
    return [drawable(part, n_chars) for part in parts] or [""]


def text_width(text: str, size: float) -> float:
    """Width of a line of text in a font size."""
    if not text.strip():
        return 0.0
    shape = TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans"))
    return float(shape.get_extents().width)


def line(mark: Mark, x: np.ndarray, y: np.ndarray, *, small: bool = False) -> Line2D:
    """A line with the colour, marker and dashes of a method or control."""
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


def whole(drawn: Line2D) -> Line2D:
    """The line with markers that are whole, also where the axis ends."""
    drawn.set_clip_on(False)
    return drawn


def bar_ends(mean: float, sd: float) -> tuple[float, float]:
    """Ends of a bar of one sd over seeds to both sides, times 100, which no score can be above."""
    return 100 * (mean - sd), max(100 * mean, min(100 * (mean + sd), MOST))


def marks_of(marks: dict[str, Mark], names: set[str]) -> dict[str, Mark]:
    """The marks of these names, in the order of `marks`."""
    return {name: mark for name, mark in marks.items() if name in names}


def _shown_names(names: Sequence[str]) -> list[str]:
    return [drawable(name, _COLUMNS[-1][0]) for name in names]


def _n_across(names: Sequence[str]) -> int:
    longest = max(map(len, names), default=0)
    return next((n for most, n in _COLUMNS if longest <= most), 1)


def log_scale(axes: Axes) -> None:
    """Set a logarithmic y scale with a few plain numbers."""
    axes.set_yscale("log")
    axes.autoscale_view()
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 3.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def two_across(
    n_panels: int,
    shown: dict[str, Mark],
    below: str,
    *,
    row: float,
    foot: float,
    left: float,
    hspace: float,
    wspace: float,
    notes: Sequence[str] = (),
) -> tuple[Figure, list[SubplotSpec]]:
    """A figure with a legend, space for panels, two in a row, and a common x label.

    Args:
        n_panels: at least one.
        shown: marks in the legend.
        below: x label.
        row: height of a row.
        foot: space below the rows.
        left: left margin, as a fraction of the width.
        hspace: space between rows, as a fraction of the height of a panel.
        wspace: space between columns, as a fraction of the width of a panel.
        notes: lines below the x label.
    """
    n_across = min(2, n_panels)
    n_down = -(-n_panels // n_across)
    under = len(notes) * NOTE_LINE
    height = legend_height(list(shown)) + n_down * row + foot + under
    figure, top = framed(height, shown, ())
    grid = figure.add_gridspec(
        n_down,
        n_across,
        left=left,
        right=0.985,
        top=top - 16 / height,
        bottom=(42 + under) / height,
        hspace=hspace,
        wspace=wspace,
    )
    figure.supxlabel(below, y=(6 + under) / height, fontsize=10.5, color=MUTED, va="bottom")
    for i, note in enumerate(reversed(notes)):
        at = (4 / WIDTH, (4 + i * NOTE_LINE) / height)
        figure.text(*at, note, fontsize=NOTE_SIZE, color=MUTED, va="bottom")
    return figure, [grid[divmod(i, n_across)] for i in range(n_panels)]


def rows_of_panels(shown: dict[str, Mark], n_rows: int) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """A figure with two panels in each row, a title above each and epochs below."""
    height = legend_height(list(shown)) + n_rows * _ROW + 12.0
    figure, top = framed(height, shown, ())
    grid = figure.add_gridspec(
        n_rows,
        2,
        left=0.085,
        right=0.99,
        top=top - 18 / height,
        bottom=40 / height,
        hspace=0.42,
        wspace=0.19,
    )
    panels: list[tuple[Axes, Axes]] = []
    for row in range(n_rows):
        left = figure.add_subplot(grid[row, 0])
        right = figure.add_subplot(grid[row, 1], sharex=left)
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        panels.append((left, right))
    figure.supxlabel("epoch", y=6 / height, fontsize=10.5, color=MUTED, va="bottom")
    return figure, panels


def panel_title(axes: Axes, name: str, what: str = "") -> None:
    """Set the title of a small panel: the name of a task, say, and what of it is drawn."""
    axes.set_title(named(name, what, 36), color=INK, fontsize=9.5)


def named(name: str, what: str, n_chars: int) -> str:
    """A user's name and what is said of it, as one line that can be drawn; only the name is shortened, and
    some of it is always left."""
    if not what:
        return drawable(name, n_chars)
    return f"{drawable(name, max(n_chars - len(what) - 1, _SHORTEST))} {drawable(what, n_chars)}"


def add_line(axes: Axes, mark: Mark, x: np.ndarray, y: np.ndarray, place: int) -> None:
    """Add a line over epochs; `place` is its index among the lines of a panel and shifts its markers."""
    drawn = line(mark, x, y, small=True)
    step = -(-len(x) // _N_MARKERS)
    if step > 1:
        # The first marker of each line is at a different epoch, so that equal lines can be told apart.
        drawn.set_markevery((place % step, step))
    axes.add_line(drawn)


def ring(axes: Axes, x: float, y: float, colour: str, size: float) -> None:
    """Draw a ring around a chosen point."""
    axes.plot(
        [x],
        [y],
        linestyle="none",
        marker="o",
        markersize=size,
        markerfacecolor="none",
        markeredgecolor=colour,
        markeredgewidth=1.1,
        zorder=5,
    )
