"""Checks of everything that a run would refuse, before anything is computed or written."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.nodes.absent import DataAbsent
from permafrost.flows.nodes.reading import corpus_input
from permafrost.flows.preview import Preview
from permafrost.flows.stage import stage_of
from permafrost.stages.extraction.device import device_name
from permafrost.stages.report.residuals import require_scale
from permafrost.storage import paths
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.quoting import quoted


def check(
    nodes: ExperimentGraph,
    home: Path,
    progress: Callable[[str], Progress] = lambda label: SilentProgress(),
) -> Preview:
    """Refuse an experiment that a run would refuse, as far as its file, its corpora, the backbone's files and
    the home show: splits, columns, labels, layers, devices.

    Corpora that are not published are read into memory and kept in the returned context, so that what was
    checked is what runs. What is published already is not checked, but against the scales that
    `report.residuals` names. Nothing is written.

    Args:
        nodes: of the experiment.
        home: that it would be run in.
        progress: of building the corpus with a label.

    Raises:
        InputError: the first problem, with the stage that would fail.
    """
    require_writable(home)
    _check_report(nodes)
    context = Preview(nodes.graph, home, nodes.experiment.runtime, progress)
    for node in nodes.graph:
        if not context.artifacts.is_done(node.ref):
            try:
                stage_of(node).check(node, context)
            except DataAbsent:
                continue  # a plan that is asked to go on without data; what needs their texts is left
            except (InputError, NotFoundError) as error:
                error.add_note(f"while checking '{node.label}'")
                raise
    _check_residuals(nodes, context)
    device_name(nodes.experiment.runtime.device)
    return context


def _check_residuals(nodes: ExperimentGraph, context: Preview) -> None:
    """Check the scales that predictions are held against grades on."""
    e = nodes.experiment
    for number, held in enumerate(e.report.residuals):
        for task in dict.fromkeys(c.task for c in e.cells if c.method == held.method):
            source = corpus_input(nodes.corpora[task])
            is_named = not held.tasks or task in held.tasks
            is_graded = e.tasks[task].task_kind == "similarity"
            if not (is_named and is_graded and context.is_known(source)):
                continue
            corpus = context.corpus(source)
            if "test" in corpus.splits:
                labels = corpus.split("test").column("label").to_numpy()
                require_scale(held, labels, f"report.residuals.{number}", task)


def require_writable(home: Path) -> None:
    """Check that a home exists or can be created, and is writable; leaves no files behind.

    Raises:
        InputError: a file is in the place of a folder, or the folder is not writable.
    """
    existing = next(p for p in (home, *home.absolute().parents) if os.path.lexists(p))
    if not existing.is_dir():
        raise InputError(
            f"the home {home} cannot be made: {existing} is not a folder; give another one with --home"
        )
    paths.require_writable(home, "the home")


def _check_report(nodes: ExperimentGraph) -> None:
    """Check what the report would refuse, as it is built last."""
    e = nodes.experiment
    tasks = dict.fromkeys([*(c.task for c in e.cells), *(c.task for c in e.evaluation_cells)])
    e.report.x_axis.require(tasks)
    drawn = dict.fromkeys(c.task for c in e.cells if e.methods[c.method].draws_graphs)
    for task in e.report.graphs_of:
        if task not in drawn:
            raise InputError(
                f"report.graphs_of names the task {quoted(task)}, on which no method of kind graph_text "
                f"reads graphs; such methods are on {', '.join(map(quoted, drawn)) or 'no task'}"
            )
    curves = Counter(
        (curve, task) for name, curve, task in nodes.probes if e.probes[name].section == "layers"
    )
    if twice := [key for key, n in curves.items() if n > 1]:
        curve, task = twice[0]
        raise InputError(
            f"probes of kind 'layers' have two curves named {quoted(curve)} on {quoted(task)}; name one of "
            "them differently"
        )
