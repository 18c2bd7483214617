"""Tasks of an experiment that no method, probe or pretraining reads."""

from collections.abc import Iterable
from itertools import chain

from permafrost.flows.experiment_nodes import ExperimentNodes
from permafrost.flows.graph import Node
from permafrost.flows.nodes.extraction import Extract
from permafrost.storage.quoting import quoted


def unread_notes(nodes: ExperimentNodes) -> tuple[str, ...]:
    """A sentence on each task whose corpus goes into nothing but its extractions."""
    tasks = nodes.experiment.tasks
    read = {i.ref for node in _readers(nodes) if node.stage != Extract.name for i in node.inputs}
    extracted = {task for _, task, _ in nodes.extractions}
    return tuple(
        f"No method, probe or pretraining reads the task {quoted(task)} ({tasks[task].task_kind})"
        + (", though its texts are extracted: " if task in extracted else ": ")
        + (
            "pretrainings and probes read texts without labels where they name the task, and pairs of "
            "them train a head with loss: {kind: contrastive}."
            if tasks[task].task_kind == "unlabelled"
            else "no method is of its kind or names it in its 'tasks'."
        )
        for task in tasks
        if nodes.corpora[task].id not in read
    )


def _readers(nodes: ExperimentNodes) -> Iterable[Node]:
    groups = (
        *(nodes.corpora, nodes.adapted, nodes.choices, nodes.further, nodes.pretrainings),
        *(nodes.fits, nodes.probes, nodes.scores, nodes.evaluations),
    )
    return chain(*(group.values() for group in groups), *nodes.candidates.values())
