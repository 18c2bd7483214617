"""Nodes of probes: one per curve and task."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flows.nodes import Node, code_of
from flows.probes import (
    LogitLensProbe,
    NextTokenProbe,
    ProbeConfig,
    ProbeMethod,
    SensitivityProbe,
    method_arrays,
)
from flows.token_probe_nodes import logit_lens_node, next_token_node, sensitivity_node
from stages.corpus.corpus import Corpus
from stages.embed import StoredFeatures
from stages.layer_probe import LayerProbeConfig, LayerScores, probe_layers, require_probed
from stages.probes import (
    GeometryConfig,
    GraphTimeConfig,
    ProbeCurves,
    TaskScoreConfig,
    TokenGraphConfig,
    chosen_texts,
    probe_geometry,
    probe_graph_time,
    probe_task,
    probe_token_graph,
    require_scorable,
)
from storage.artifacts import ArtifactSpec, Draft
from storage.keys import to_plain
from storage.progress import Progress

if TYPE_CHECKING:
    from flows.dag import Dag

_ENTRIES: dict[type[ProbeMethod], Callable[..., LayerScores | ProbeCurves]] = {
    LayerProbeConfig: probe_layers,
    TaskScoreConfig: probe_task,
    GeometryConfig: probe_geometry,
    TokenGraphConfig: probe_token_graph,
    GraphTimeConfig: probe_graph_time,
}


def probe_nodes(dag: "Dag") -> dict[tuple[str, str, str], Node]:
    """One node per (probe, curve, task)."""
    return {
        (name, curve, task): _node(dag, probe, curve, task)
        for name, probe in dag.experiment.probes.items()
        for curve in probe.methods
        for task in probe.tasks
    }


def _node(dag: "Dag", probe: ProbeConfig, curve: str, task: str) -> Node:
    if isinstance(probe, NextTokenProbe):
        return next_token_node(dag, probe, curve, task)
    if isinstance(probe, LogitLensProbe):
        return logit_lens_node(dag, probe, curve, task)
    if isinstance(probe, SensitivityProbe):
        return sensitivity_node(dag, probe, curve, task)
    return _features_node(dag, curve, task, probe.recipe, probe.kind, probe.methods[curve])


def _features_node(
    dag: "Dag", curve: str, task: str, recipe: str, kind: str, method: ProbeMethod
) -> Node:
    """Made from stored features alone."""
    entry = _ENTRIES[type(method)]
    # The first kind there was had none in its keys.
    config: dict[str, Any] = {} if kind == "layers" else {"kind": kind}
    spec = ArtifactSpec(
        stage="probe",
        config={**config, **to_plain(method)},
        inputs=(
            str(dag.corpus_nodes[task].spec.ref),
            *dag.stores[recipe].inputs(method_arrays(method, dag.sizes)),
        ),
        code=code_of(entry, StoredFeatures),
    )

    def make(draft: Draft, progress: Progress) -> None:
        found = entry(method, dag.members(recipe, task), dag.corpus(task), progress)
        found.save(draft.folder)
        draft.summary = {"curve": curve, "task": task}
        if isinstance(found, ProbeCurves):
            draft.summary |= found.choice

    def check() -> None:
        _require(method, dag.corpus(task))

    return Node("fit", f"probe {curve} · {task}", spec, make, check)


def _require(method: ProbeMethod, corpus: Corpus) -> None:
    """Check what the corpus of a probe tells without features."""
    if isinstance(method, LayerProbeConfig):
        require_probed(corpus)
    elif isinstance(method, GeometryConfig):
        chosen_texts(corpus.digests, method)
    elif isinstance(method, TaskScoreConfig) or (
        isinstance(method, TokenGraphConfig) and corpus.task != "unlabelled"
    ):
        require_scorable(method, corpus)
