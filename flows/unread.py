"""Tasks of an experiment that nothing reads, or no head where the report is to show token weights."""

from collections.abc import Iterable
from itertools import chain

from permafrost.flows.experiment_nodes import ExperimentNodes
from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import CHOSEN
from permafrost.flows.nodes.extraction import Extract
from permafrost.storage.quoting import quoted


def unread_notes(nodes: ExperimentNodes) -> tuple[str, ...]:
    """A sentence on each task whose corpus goes into nothing but its extractions, and on one whose token
    weights the report is to show and no head has."""
    tasks, shown = nodes.experiment.tasks, nodes.experiment.report.weights_of
    read = {i.ref for node in _readers(nodes) if node.stage != Extract.name for i in node.inputs}
    extracted = {task for _, task, _ in nodes.extractions}
    unread = tuple(
        f"No method, probe or pretraining reads the task {quoted(task)} ({tasks[task].task_kind})"
        + (", though its texts are extracted: " if task in extracted else ": ")
        + (
            "pretrainings and probes read texts without labels where they name the task, and pairs of "
            "them train a head with loss: {kind: contrastive}."
            if tasks[task].task_kind == "unlabelled"
            else "no method is of its kind or names it in its 'tasks'."
        )
        for task in tasks
        if nodes.corpora[task].id not in read and task != shown
    )
    if shown is None or any(node.inputs_named(CHOSEN) for node in nodes.scores.values()):
        return unread
    is_for_nothing = nodes.corpora[shown].id not in read and shown in extracted
    though = (
        ", though they are extracted, as 'capture' asks for those of every task"
        if is_for_nothing
        else ""
    )
    return (
        *unread,
        f"report.weights_of names the task {quoted(shown)}, but no head reads tokens of the experiment's "
        f"backbone under its own recipe, so the report shows no token weights of its texts{though}.",
    )


def _readers(nodes: ExperimentNodes) -> Iterable[Node]:
    groups = (
        *(nodes.corpora, nodes.adapted, nodes.choices, nodes.further, nodes.pretrainings),
        *(nodes.fits, nodes.probes, nodes.scores, nodes.evaluations),
    )
    return chain(*(group.values() for group in groups), *nodes.candidates.values())
