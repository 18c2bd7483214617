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

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.entries import DASH, hundredths, magnitude
from permafrost.stages.report.frame import (
    NOTE_SIZE,
    WIDTH,
    line,
    panel_title,
    text_width,
    two_across,
)
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.palette import Mark
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Groups = Mapping[str, Sequence[Sequence[str]]]
"""Members of each group of tasks; those of one member are averaged, and count as one."""
_ROW, _TICK_SIZE, _GAP = 168.0, 8.0, 6.0
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
    if value is None:
        return DASH
    rounded = round(value, 2)
    return "0.00" if rounded == 0 else f"{rounded:+.2f}".replace("-", "−")


def scores_figure(across: Across, marks: Mapping[str, Mark]) -> Figure:
    """A panel a task: the metric of each method against the parameters of the backbone."""
    panels = {
        (task, f"({across.metrics[task]})"): {
            m: [(run, 100 * run.tests[m, task]) for run in across.runs] for m in across.methods
        }
        for task in across.tasks
    }
    return _panels(across, panels, marks, "× 100")


def standard_figure(across: Across, groups: Groups, marks: Mapping[str, Mark]) -> Figure:
    """A panel a group: the mean standard score of each method against the parameters of the backbone."""
    of_runs = [(run, across.grouped(run, groups)) for run in across.runs]
    panels = {
        (group, ""): {
            m: [(run, found[group][m]) for run, found in of_runs if group in found]
            for m in across.methods
        }
        for group in groups
    }
    return _panels(across, panels, marks, "standard score")


def _panels(
    across: Across,
    panels: Mapping[tuple[str, str], Mapping[str, Sequence[tuple[BackboneScores, float]]]],
    marks: Mapping[str, Mark],
    label: str,
) -> Figure:
    """Lines over the logarithm of the parameters, and which backbone has how many; runs whose parameters are
    not known are not drawn."""
    figure, places = two_across(
        len(panels),
        dict(marks),
        "parameters of the backbone",
        row=_ROW,
        foot=40.0,
        left=0.1,
        hspace=0.5,
        wspace=0.27,
        notes=_backbones(across),
    )
    for place, ((name, what), curves) in zip(places, panels.items(), strict=True):
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
        room = axes.get_position().width * WIDTH
        axes.set_xticks(drawn, _thinned(drawn, axes.get_xlim(), room), fontsize=_TICK_SIZE)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylabel(label, fontsize=9)
        panel_title(axes, name, what)
    return figure


def _backbones(across: Across) -> list[str]:
    """Lines that name the backbone of each size, from small to large."""
    known = sorted((r.n_parameters, r.backbone) for r in across.runs if r.n_parameters)
    lines: list[str] = []
    for n_parameters, backbone in known:
        name = f"{magnitude(n_parameters)}: {drawable(backbone)}"
        longer = f"{lines[-1]}; {name}" if lines else name
        if lines and text_width(longer, NOTE_SIZE) < WIDTH - 8:
            lines[-1] = longer
        else:
            lines.append(name)
    return lines


def _thinned(sizes: Sequence[int], limits: tuple[float, float], room: float) -> list[str]:
    """Labels of ticks on a logarithmic axis of so many points; empty where one would touch the one before."""
    low, high = np.log(limits)
    labels: list[str] = []
    end = -np.inf
    for size in sizes:
        label = magnitude(size)
        half = text_width(label, _TICK_SIZE) / 2
        at = float((np.log(size) - low) / (high - low)) * room
        is_free = at - half >= end + _GAP
        labels.append(label if is_free else "")
        end = at + half if is_free else end
    return labels
