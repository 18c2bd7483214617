"""The node of the report, which everything else goes into."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from flows.nodes import Node, code_of
from flows.report_inputs import (
    attention_inputs,
    attention_rows,
    extractions,
    layer_curves,
    pretraining_runs,
    probe_curves,
    report_cells,
    report_provenance,
    roles,
    text_tokens,
)
from stages.layer_probe import LayerScores
from stages.probes import ProbeCurves
from stages.report.html import page_digest
from stages.report.report import write_report
from storage.artifacts import ArtifactSpec, Draft
from storage.features.layout import TOKEN_IDS
from storage.keys import to_plain
from storage.progress import Progress
from storage.readers import open_reader

if TYPE_CHECKING:
    from flows.dag import Dag


def _named(
    nodes: Mapping[str, Node]
    | Mapping[tuple[str, str, int], Node]
    | Mapping[tuple[str, str, str], Node],
) -> list[list[str | int]]:
    """Names of nodes in the order of the report, each before its node's key."""
    return [
        [*((name,) if isinstance(name, str) else name), str(node.spec.ref)]
        for name, node in nodes.items()
    ]


def report_node(dag: "Dag") -> Node:
    """Everything together."""
    e = dag.experiment
    spec = ArtifactSpec(
        stage="report",
        config={
            "name": e.name,
            "report": to_plain(e.report),
            # The page's template and style are not Python, so no code fingerprint sees them.
            "page": page_digest(),
            # Names are shown, so each stands beside what it names: names that change places are a change.
            "results": _named(dag.result_nodes),
            "roles": roles(dag),
            "evaluations": _named(dag.evaluation_nodes),
            "tasks": _named(dag.corpus_nodes),
            "probes": _named(dag.probe_nodes),
            "pretrainings": _named(dag.pretrain_nodes),
            "recipes": [
                [name, *(target.identity.store_id for target in stores.targets)]
                for name, stores in dag.stores.items()
            ],
        },
        inputs=(
            *(str(n.spec.ref) for n in dag.result_nodes.values()),
            *(str(n.spec.ref) for n in dag.evaluation_nodes.values()),
            *(str(n.spec.ref) for n in dag.corpus_nodes.values()),
            *(str(n.spec.ref) for n in dag.probe_nodes.values()),
            *(str(n.spec.ref) for n in dag.pretrain_nodes.values()),
            next(iter(dag.stores.values())).inputs([TOKEN_IDS.name])[0],
            *attention_inputs(dag),
        ),
        code=code_of(write_report, LayerScores, ProbeCurves, open_reader),
    )

    def make(draft: Draft, progress: Progress) -> None:
        write_report(
            e.report,
            report_cells(dag),
            {task: dag.corpus(task) for task in e.tasks},
            partial(text_tokens, dag),
            report_provenance(dag),
            draft.folder,
            layer_curves=layer_curves(dag),
            probes=probe_curves(dag),
            pretrainings=pretraining_runs(dag),
            extractions=extractions(dag),
            attention=attention_rows(dag),
        )

    return Node("report", "report", spec, make)
