"""Results of one experiment with several backbones: one table, standard scores, and figures over sizes.

Source: GLOT, figures 3 and 4. Figure 3 draws accuracy by ratio against the size of the backbone. Figure 4
has, for each backbone and task, the standard scores of the poolings (mean 0 and deviation 1 over them,
population deviation), and averages them over the tasks of each kind; MNLI's two test sets are averaged first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from permafrost.stages.report.entries import DASH, hundredths, magnitude
from permafrost.stages.report.frame import line, panel_title, two_across
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.palette import Mark
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Groups = Mapping[str, Sequence[Sequence[str]]]
"""Members of each group of tasks; those of one member are averaged, and count as one."""
_ROW = 168.0
_EQUAL = 1e-12
"""Deviations up to this are rounding: the methods have one score."""


@dataclass(frozen=True)
class BackboneScores:
    """What one run says of one backbone."""

    backbone: str
    n_parameters: int | None
    """None if the backbone is not here any more."""
    tests: Mapping[tuple[str, str], float]
    """Test metric by method and task, mean over seeds."""


@dataclass(frozen=True)
class Across:
    """Runs side by side, over the methods and tasks that all of them have."""

    runs: tuple[BackboneScores, ...]
    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: Mapping[str, str]
    """By task."""

    def standard_scores(self, run: BackboneScores, task: str) -> dict[str, float]:
        """Of each method among `methods`: by how many deviations it is above their mean on a task; nothing
        where all are equal."""
        values = [run.tests[method, task] for method in self.methods]
        mean, deviation = fmean(values), pstdev(values)
        if deviation <= _EQUAL:
            return {}
        return {m: (v - mean) / deviation for m, v in zip(self.methods, values, strict=True)}

    def grouped(self, run: BackboneScores, groups: Groups) -> dict[str, dict[str, float]]:
        """Mean standard scores by group and method. A task on which all methods are equal counts in none."""
        found: dict[str, dict[str, float]] = {}
        for group, members in groups.items():
            of_members = [
                [s for task in member if (s := self.standard_scores(run, task))]
                for member in members
            ]
            known = [scores for scores in of_members if scores]
            if known:
                found[group] = {
                    m: fmean(fmean(s[m] for s in scores) for scores in known) for m in self.methods
                }
        return found


def require_groups(groups: Groups, tasks: Sequence[str]) -> None:
    """Check that groups name tasks that every run has.

    Raises:
        InputError: one does not.
    """
    for group, members in groups.items():
        for task in (t for member in members for t in member):
            if task not in tasks:
                raise InputError(
                    f"the group {quoted(group)} names the task {quoted(task)}; the runs share "
                    f"{', '.join(tasks)}"
                )


def scores_table(across: Across) -> PlainTable:
    """Rows backbone x method: test metrics × 100, with the parameters of the backbone."""
    return PlainTable(
        "Test metrics × 100, means over seeds",
        ("backbone", "method", "parameters", *(f"{t} ({across.metrics[t]})" for t in across.tasks)),
        tuple(
            (
                run.backbone,
                method,
                DASH if run.n_parameters is None else magnitude(run.n_parameters),
                *(hundredths(run.tests[method, task]) for task in across.tasks),
            )
            for run in across.runs
            for method in across.methods
        ),
    )


def standard_table(across: Across, groups: Groups) -> PlainTable:
    """Rows backbone x method: mean standard scores by group of tasks, and over the groups."""
    rows: list[tuple[str, ...]] = []
    for run in across.runs:
        of_run = across.grouped(run, groups)
        for method in across.methods:
            values = [of_run[g][method] if g in of_run else None for g in groups]
            known = [v for v in values if v is not None]
            total = fmean(known) if known else None
            rows.append((run.backbone, method, *map(_score, (*values, total))))
    return PlainTable(
        f"Standard scores over the {len(across.methods)} methods of each backbone and task (population "
        "deviation), averaged by group of tasks",
        ("backbone", "method", *groups, "mean of groups"),
        tuple(rows),
    )


def _score(value: float | None) -> str:
    return DASH if value is None else f"{value:+.2f}".replace("-", "−")


def scores_figure(across: Across, marks: Mapping[str, Mark]) -> Figure:
    """A panel a task: the metric of each method against the parameters of the backbone."""
    panels = {
        f"{task} ({across.metrics[task]})": {
            m: [(run, 100 * run.tests[m, task]) for run in across.runs] for m in across.methods
        }
        for task in across.tasks
    }
    return _panels(panels, marks)


def standard_figure(across: Across, groups: Groups, marks: Mapping[str, Mark]) -> Figure:
    """A panel a group: the mean standard score of each method against the parameters of the backbone."""
    of_runs = [(run, across.grouped(run, groups)) for run in across.runs]
    panels = {
        group: {
            m: [(run, found[group][m]) for run, found in of_runs if group in found]
            for m in across.methods
        }
        for group in groups
    }
    return _panels(panels, marks)


def _panels(
    panels: Mapping[str, Mapping[str, Sequence[tuple[BackboneScores, float]]]],
    marks: Mapping[str, Mark],
) -> Figure:
    """Lines over the logarithm of the parameters; runs whose parameters are not known are not drawn."""
    below = "parameters of the backbone"
    figure, places = two_across(
        len(panels), dict(marks), below, row=_ROW, foot=40.0, left=0.08, hspace=0.5, wspace=0.2
    )
    for place, (title, curves) in zip(places, panels.items(), strict=True):
        axes = figure.add_subplot(place)
        axes.set_xscale("log")
        for method, points in curves.items():
            known = sorted((run.n_parameters, y) for run, y in points if run.n_parameters)
            if not known:
                continue
            x, y = (np.array(values, np.float64) for values in zip(*known, strict=True))
            axes.add_line(line(marks[method], x, y, small=True))
        axes.autoscale_view()
        drawn = sorted(
            {run.n_parameters for p in curves.values() for run, _ in p if run.n_parameters}
        )
        axes.set_xticks(drawn, [magnitude(n) for n in drawn], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        panel_title(axes, title)
    return figure
