"""Maps of test texts: where a method's vectors put the texts of each class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from permafrost.stages.metrics.vector_map import VectorMap, read_vector_map
from permafrost.stages.report.canvas import shortened
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.palette import SERIES
from permafrost.stages.report.token_weights import TaskCorpus
from permafrost.storage.errors import CorruptDataError

OTHERS = "other classes"
_TITLE_CHARS = 90


@dataclass(frozen=True)
class MethodMap:
    """What one method's vectors look like."""

    method: str
    found: VectorMap


@dataclass(frozen=True)
class TaskMap:
    """The maps of one task."""

    number: int
    """From 1, in order of first appearance."""
    task: str
    class_names: tuple[str, ...]
    methods: tuple[MethodMap, ...]
    """Each with its smallest seed."""
    titles: Mapping[int, str]
    """Beginnings of the texts, by their numbers."""

    @property
    def figure(self) -> str:
        """Name of its picture."""
        return f"map_{self.number}"

    @property
    def n_texts(self) -> int:
        """Most texts on one of the maps."""
        return max(len(m.found.texts) for m in self.methods)

    @property
    def shown(self) -> dict[str, int]:
        """Classes that have a mark of their own, by name: all, or the commonest where there are too many."""
        return {self._name(c): c for c in sorted(self._ranked[: self._n_shown])}

    @property
    def rest(self) -> tuple[int, ...]:
        """Classes that are drawn together."""
        return tuple(sorted(self._ranked[self._n_shown :]))

    @property
    def rest_name(self) -> str:
        """What the rest is called: like no class that is shown."""
        return OTHERS if OTHERS not in self.shown else f"all {OTHERS}"

    @cached_property
    def _ranked(self) -> list[int]:
        counts = Counter(c for m in self.methods for c in m.found.classes.tolist())
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
    """The maps of every task that has some; controls have none.

    Raises:
        CorruptDataError: a file of a map cannot be read, or is of another corpus.
    """
    chosen: dict[tuple[str, str], CellResult] = {}
    for r in results:
        kept = chosen.setdefault((r.cell.task, r.cell.method), r)
        if r.cell.seed < kept.cell.seed:
            chosen[r.cell.task, r.cell.method] = r
    by_task: dict[str, list[MethodMap]] = {}
    for (task, method), r in chosen.items():
        if r.cell.role == "control" or (found := read_vector_map(r.cell.folder)) is None:
            continue
        if found.names is None:
            if task not in corpora:
                continue
            _check_texts(found, corpora[task], r)
        by_task.setdefault(task, []).append(MethodMap(method, found))
    return tuple(
        _task_map(i, task, tuple(maps), corpora)
        for i, (task, maps) in enumerate(by_task.items(), start=1)
    )


def _task_map(
    number: int, task: str, maps: tuple[MethodMap, ...], corpora: Mapping[str, TaskCorpus]
) -> TaskMap:
    texts: dict[int, str] = {}
    class_names: tuple[str, ...] = ()
    for found in (m.found for m in maps):
        if found.names is None:
            class_names = corpora[task].label_names
            texts |= {t: corpora[task].texts[t] for t in found.texts.tolist()}
        else:
            class_names = found.names.classes
            texts |= dict(zip(found.texts.tolist(), found.names.texts, strict=True))
    titles = {t: shortened(" ".join(text.split()), _TITLE_CHARS) for t, text in texts.items()}
    return TaskMap(number, task, class_names, maps, titles)


def map_description(task_map: TaskMap) -> str:
    """The figure in words: of every map its texts, and the shares of the variance it shows."""
    maps = "; ".join(
        f"{m.method}: {m.found.shares[0]:.0%} and {m.found.shares[1]:.0%}" for m in task_map.methods
    )
    return (
        f"{task_map.task}: vectors of {task_map.n_texts} test texts by class on their first two principal "
        f"components. Shares of the variance on the two axes: {maps}."
    )


def _check_texts(found: VectorMap, corpus: TaskCorpus, result: CellResult) -> None:
    if len(found.texts) and found.texts.max() >= len(corpus.texts):
        raise CorruptDataError(
            f"the map of {result.cell.label} names text {found.texts.max()} but the corpus has "
            f"{len(corpus.texts)} texts; it was made from another corpus, so score it again"
        )
