"""Maps of test texts: a method's vectors by class on their first two principal components, one panel per
method.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from permafrost.stages.metrics.vector_map import VectorMap, read_vector_map
from permafrost.stages.report.canvas import drawable, shortened
from permafrost.stages.report.cells import CellResult, TaskCorpus
from permafrost.stages.report.frame import framed, legend_height, wrapped
from permafrost.stages.report.palette import INK, MUTED, PAPER, SERIES, Mark, class_mark, rest_mark
from permafrost.storage.errors import CorruptDataError

OTHERS = "other classes"
_TITLE_CHARS = 90
_ACROSS = 3
_PANEL = 148.0
_ABOVE, _BELOW, _FOOT = 20.0, 26.0, 12.0
_NAME_CHARS, _LINE = 22, 12.0
"""Of the name above a panel: characters of a line, and the height of each after the first."""


@dataclass(frozen=True)
class MethodMap:
    """The map of one method's vectors."""

    method: str
    map: VectorMap


@dataclass(frozen=True)
class TaskMap:
    """The maps of one task."""

    number: int
    """Number from 1, in order of first appearance."""
    task: str
    class_names: tuple[str, ...]
    methods: tuple[MethodMap, ...]
    """Maps of the methods, each with its smallest seed."""
    titles: Mapping[int, str]
    """Beginnings of the texts, by the index of the text."""

    @property
    def figure(self) -> str:
        """Name of its picture."""
        return f"map_{self.number}"

    @property
    def n_texts(self) -> int:
        """Number of texts on the largest of the maps."""
        return max(len(m.map.texts) for m in self.methods)

    @property
    def shown(self) -> dict[str, int]:
        """Classes that have a mark of their own, by name: all, or the most frequent if there are too many."""
        return {self._name(c): c for c in sorted(self._ranked[: self._n_shown])}

    @property
    def rest(self) -> tuple[int, ...]:
        """Classes that share one mark."""
        return tuple(sorted(self._ranked[self._n_shown :]))

    @property
    def rest_name(self) -> str:
        """Name of the rest, which differs from all classes shown."""
        return OTHERS if OTHERS not in self.shown else f"all {OTHERS}"

    @cached_property
    def _ranked(self) -> list[int]:
        counts = Counter(c for m in self.methods for c in m.map.classes.tolist())
        return sorted(counts, key=lambda c: (-counts[c], c))

    @property
    def _n_shown(self) -> int:
        n = len(self._ranked)
        return n if n <= len(SERIES) else len(SERIES) - 1

    def _name(self, c: int) -> str:
        return self.class_names[c] if 0 <= c < len(self.class_names) else str(c)


def read_task_maps(
    results: Sequence[CellResult], corpora: Mapping[str, TaskCorpus]
) -> tuple[TaskMap, ...]:
    """The maps of every task that has any; controls have none.

    Raises:
        CorruptDataError: a file of a map cannot be read, or belongs to a different corpus.
    """
    chosen: dict[tuple[str, str], CellResult] = {}
    for r in results:
        kept = chosen.setdefault((r.cell.task, r.cell.method), r)
        if r.cell.seed < kept.cell.seed:
            chosen[r.cell.task, r.cell.method] = r
    by_task: dict[str, list[MethodMap]] = {}
    for (task, method), r in chosen.items():
        if r.cell.role == "control" or (vector_map := read_vector_map(r.cell.folder)) is None:
            continue
        if vector_map.names is None:
            if task not in corpora:
                continue
            _check_texts(vector_map, corpora[task], r)
        by_task.setdefault(task, []).append(MethodMap(method, vector_map))
    return tuple(
        _task_map(i, task, tuple(maps), corpora)
        for i, (task, maps) in enumerate(by_task.items(), start=1)
    )


def _task_map(
    number: int, task: str, maps: tuple[MethodMap, ...], corpora: Mapping[str, TaskCorpus]
) -> TaskMap:
    texts: dict[int, str] = {}
    class_names: tuple[str, ...] = ()
    for vector_map in (m.map for m in maps):
        if vector_map.names is None:
            class_names = corpora[task].label_names
            texts |= {t: corpora[task].texts[t] for t in vector_map.texts.tolist()}
        else:
            class_names = vector_map.names.classes
            texts |= dict(zip(vector_map.texts.tolist(), vector_map.names.texts, strict=True))
    titles = {t: shortened(" ".join(text.split()), _TITLE_CHARS) for t, text in texts.items()}
    return TaskMap(number, task, class_names, maps, titles)


def map_description(task_map: TaskMap) -> str:
    """Alternative text of the figure: the number of texts and each map's shares of the variance."""
    maps = "; ".join(
        f"{m.method}: {m.map.shares[0]:.0%} and {m.map.shares[1]:.0%}" for m in task_map.methods
    )
    return (
        f"{task_map.task}: vectors of {task_map.n_texts} test texts by class on their first two principal "
        f"components. Shares of the variance on the two axes: {maps}."
    )


def _check_texts(vector_map: VectorMap, corpus: TaskCorpus, result: CellResult) -> None:
    if len(vector_map.texts) and vector_map.texts.max() >= len(corpus.texts):
        raise CorruptDataError(
            f"the map of {result.cell.label} names text {vector_map.texts.max()} but the corpus has "
            f"{len(corpus.texts)} texts; it was made from another corpus, so score it again"
        )


def map_figure(task_map: TaskMap) -> tuple[Figure, Mapping[str, tuple[str, ...]]]:
    """The figure, and the tooltips of its markers by the `gid` of their line."""
    marks = {name: class_mark(i) for i, name in enumerate(task_map.shown)}
    if task_map.rest:
        marks[task_map.rest_name] = rest_mark()
    n_down = -(-len(task_map.methods) // _ACROSS)
    above = _ABOVE + _LINE * max(len(_lines(m)) - 1 for m in task_map.methods)
    row_height = above + _PANEL + _BELOW
    height = legend_height(list(marks)) + n_down * row_height + _FOOT
    figure, top = framed(height, marks, ())
    for handle in figure.legends[0].legend_handles:
        if isinstance(handle, Line2D):
            handle.set_linestyle("none")
    titles: dict[str, tuple[str, ...]] = {}
    for place, method_map in enumerate(task_map.methods):
        row, column = divmod(place, _ACROSS)
        bottom = top - (row * row_height + above + _PANEL) / height
        axes = figure.add_axes((0.035 + column * 0.33, bottom, 0.295, _PANEL / height))
        titles |= _draw(axes, task_map, method_map, marks, place)
    footer = f"{drawable(task_map.task)}, {task_map.n_texts} test texts"
    figure.text(0.99, 3 / height, footer, fontsize=9.0, color=MUTED, ha="right")
    return figure, titles


def _lines(method_map: MethodMap) -> list[str]:
    return wrapped(method_map.method, _NAME_CHARS, 3)


def _draw(
    axes: Axes, task_map: TaskMap, method_map: MethodMap, marks: dict[str, Mark], place: int
) -> dict[str, tuple[str, ...]]:
    vector_map = method_map.map
    titles: dict[str, tuple[str, ...]] = {}
    shown = {name: (c,) for name, c in task_map.shown.items()}
    for number, name in enumerate(marks):
        classes = shown.get(name, task_map.rest)
        indices = np.flatnonzero(np.isin(vector_map.classes, classes))
        if not len(indices):
            continue
        mark, gid = marks[name], f"map-{place}-{number}"
        axes.plot(
            *vector_map.points[indices].T,
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
        titles[gid] = tuple(task_map.titles[t] for t in vector_map.texts[indices].tolist())
    axes.set_title("\n".join(_lines(method_map)), color=INK, fontsize=9.5)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.margins(0.06)
    first, second = vector_map.shares
    axes.set_xlabel(f"PC1 ({first:.0%})", fontsize=9.0, color=MUTED, labelpad=3)
    axes.set_ylabel(f"PC2 ({second:.0%})", fontsize=9.0, color=MUTED, labelpad=3)
    return titles
