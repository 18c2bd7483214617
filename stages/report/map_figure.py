"""The figure of a task's maps: one panel per method, one mark per text.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.frame import framed, legend_height
from permafrost.stages.report.palette import INK, MUTED, PAPER, Mark, class_mark, rest_mark
from permafrost.stages.report.vector_maps import MethodMap, TaskMap

_ACROSS = 3
_PANEL = 148.0
_ABOVE, _BELOW, _FOOT = 20.0, 26.0, 12.0


def map_figure(task_map: TaskMap) -> tuple[Figure, Mapping[str, tuple[str, ...]]]:
    """The figure, and the texts of its marks by the `gid` of the lines that hold them."""
    marks = {name: class_mark(i) for i, name in enumerate(task_map.shown)}
    if task_map.rest:
        marks[task_map.rest_name] = rest_mark()
    n_down = -(-len(task_map.methods) // _ACROSS)
    height = legend_height(list(marks)) + n_down * (_ABOVE + _PANEL + _BELOW) + _FOOT
    figure, top = framed(height, marks, ())
    for handle in figure.legends[0].legend_handles:
        if isinstance(handle, Line2D):
            handle.set_linestyle("none")
    titles: dict[str, tuple[str, ...]] = {}
    for place, method_map in enumerate(task_map.methods):
        row, column = divmod(place, _ACROSS)
        above = row * (_ABOVE + _PANEL + _BELOW) + _ABOVE
        axes = figure.add_axes(
            (0.035 + column * 0.33, top - (above + _PANEL) / height, 0.295, _PANEL / height)
        )
        titles |= _draw(axes, task_map, method_map, marks, place)
    said = f"{drawable(task_map.task)}, {task_map.n_texts} test texts"
    figure.text(0.99, 3 / height, said, fontsize=9.0, color=MUTED, ha="right")
    return figure, titles


def _draw(
    axes: Axes, task_map: TaskMap, method_map: MethodMap, marks: dict[str, Mark], place: int
) -> dict[str, tuple[str, ...]]:
    found = method_map.found
    titles: dict[str, tuple[str, ...]] = {}
    shown = {name: (c,) for name, c in task_map.shown.items()}
    for number, name in enumerate(marks):
        classes = shown.get(name, task_map.rest)
        mine = np.flatnonzero(np.isin(found.classes, classes))
        if not len(mine):
            continue
        mark, gid = marks[name], f"map-{place}-{number}"
        axes.plot(
            *found.points[mine].T,
            linestyle="none",
            marker=mark.marker,
            markersize=3.6,
            markerfacecolor=mark.colour if mark.filled else PAPER,
            markeredgecolor=mark.colour,
            markeredgewidth=0.6,
            alpha=0.8,
            zorder=2 if name in shown else 1,  # the rest beneath
            gid=gid,
        )
        titles[gid] = tuple(task_map.titles[t] for t in found.texts[mine].tolist())
    axes.set_title(drawable(method_map.method, 24), color=INK, fontsize=9.5)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.margins(0.06)
    first, second = found.shares
    axes.set_xlabel(f"{first:.0%}", fontsize=9.0, color=MUTED, labelpad=3)
    axes.set_ylabel(f"{second:.0%}", fontsize=9.0, color=MUTED, labelpad=3)
    return titles
