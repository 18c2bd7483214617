"""Means over tasks: of one kind, and of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

AverageRule = Literal["same_metric", "any_metric", "mteb", "none"]
"""Which tasks are averaged: only those scored by one metric, or all, as GLUE does, or none. `mteb`: all, and
beside the mean over tasks the mean over kinds of task, as its leaderboard has both."""


@runtime_checkable
class ScoredTask(Protocol):
    """A task under a metric."""

    @property
    def task(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def category(self) -> str | None: ...


@dataclass(frozen=True)
class Average:
    """An unweighted mean over tasks."""

    heading: str
    metric: str
    """That of the tasks, or `mixed`."""
    columns: tuple[int, ...]
    """Which columns of the results."""
    kinds: tuple[tuple[int, ...], ...] = ()
    """The columns by kind of task, where kinds count alike; empty where tasks do."""


def averages(columns: Sequence[ScoredTask], rule: AverageRule) -> tuple[Average, ...]:
    """The mean over all tasks last, before it one for each category, wherever there are two tasks or more.

    A category that holds all tasks has no mean of its own. A task that has several metrics counts by the
    first.
    """
    first = {column.task: i for i, column in reversed(list(enumerate(columns)))}
    categories = dict.fromkeys(c.category for c in columns if c.category is not None)
    groups: dict[str, list[int]] = {}
    for name in categories:
        mine = [i for i, c in enumerate(columns) if c.category == name and first[c.task] == i]
        if len(mine) < len(first):
            groups[f"mean, {name.replace('_', ' ')}"] = mine
    groups["mean"] = sorted(first.values())
    found: list[Average] = []
    for heading, mine in groups.items():
        metrics = {columns[i].metric for i in mine}
        is_wanted = rule in ("any_metric", "mteb") or (rule == "same_metric" and len(metrics) == 1)
        if len(mine) > 1 and is_wanted:
            metric = metrics.pop() if len(metrics) == 1 else "mixed"
            found.append(Average(heading, metric, tuple(mine)))
    kinds = tuple(tuple(i for i in groups["mean"] if columns[i].category == k) for k in categories)
    if rule == "mteb" and 1 < len(kinds) < len(groups["mean"]):
        last = found[-1]
        found.append(Average("mean of kinds", last.metric, last.columns, kinds))
    return tuple(found)
