"""Planning a run: what would run, why, and at what cost; writes nothing."""

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.context import RunContext
from permafrost.flows.evaluations import texts_name
from permafrost.flows.graph import Node
from permafrost.flows.nodes.extraction import Extract, planned, target_of
from permafrost.flows.nodes.reading import corpus_input
from permafrost.flows.preview import Preview
from permafrost.flows.stage import stage_of
from permafrost.stages.extraction.extract import DISK_MARGIN
from permafrost.stages.extraction.planning import ExtractionPlan, plan_extraction
from permafrost.storage.errors import NotFoundError
from permafrost.storage.explain import Explainer, Explanation
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import each_once


@dataclass(frozen=True)
class PlanRow:
    """Nodes of one stage that would run for the same reason."""

    stage: str
    n_run: int
    n_reuse: int
    why: str


@dataclass(frozen=True)
class Plan:
    """What a run of an experiment would do."""

    rows: tuple[PlanRow, ...]
    extractions: tuple[ExtractionPlan, ...]
    """One per feature store, or several if different arrays of it are made from different texts."""
    free_bytes: int
    tokens_per_s: float | None
    """Measured in earlier extractions under this home; None if there are none."""
    hub_tasks: tuple[str, ...] = ()
    """Evaluation tasks whose texts are not counted, as they are known only after download from the hub."""
    graphs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What the corpora with graphs that would be built consist of, by task."""

    @property
    def n_bytes(self) -> int:
        """Bytes that all extractions would write."""
        return sum(e.n_bytes for e in self.extractions)

    @property
    def n_tokens(self) -> int:
        """Tokens that would go through the backbone."""
        return sum(e.n_tokens for e in self.extractions)

    @property
    def fits(self) -> bool:
        """Whether the disk has room for the extractions."""
        need = self.n_bytes
        return need == 0 or need + DISK_MARGIN <= self.free_bytes

    @property
    def seconds(self) -> float | None:
        """Estimated extraction time."""
        return self.n_tokens / self.tokens_per_s if self.tokens_per_s else None

    def time_text(self) -> str:
        """The estimate as text."""
        if self.seconds is None:
            return "time unknown (there is no earlier extraction under this home)"
        return f"about {self.seconds:,.0f} s at the {self.tokens_per_s:,.0f} tokens/s of earlier extractions"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        stores = [
            {
                "store_id": e.store_id,
                "n_texts": e.n_texts,
                "n_new_texts": e.n_new_texts,
                "n_tokens": e.n_tokens,
                "tokens_exact": e.exact,
                "bytes": e.n_bytes,
                "bytes_per_array": e.bytes_per_array,
            }
            for e in self.extractions
        ]
        return {
            "stages": [vars(r) for r in self.rows],
            "stores": stores,
            # Sums over all stores; a text under two recipes counts twice.
            "n_texts": sum(e.n_texts for e in self.extractions),
            "n_new_texts": sum(e.n_new_texts for e in self.extractions),
            "n_tokens": self.n_tokens,
            "tokens_exact": all(e.exact for e in self.extractions),
            "bytes": self.n_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "seconds": self.seconds,
            "hub_tasks": list(self.hub_tasks),
            "graphs": {task: dict(counts) for task, counts in self.graphs.items()},
        }


def make_plan(nodes: ExperimentGraph, context: Preview) -> Plan:
    """Compare every node with what is published.

    Args:
        nodes: of the experiment.
        context: a preview of its graph; one from `check` has built its corpora already.
    """
    extractions = {
        node.id: planned(node, context) for node in nodes.graph if node.stage == Extract.name
    }
    explainer = Explainer(context.artifacts, nodes.graph.specs)
    reuse: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for node in nodes.graph:
        reasons.setdefault(node.stage, Counter())
        why = _reason(node, explainer, context, extractions.get(node.id))
        if why is None:
            reuse[node.stage] += 1
        else:
            reasons[node.stage][why] += 1
    rows: list[PlanRow] = []
    for stage, causes in reasons.items():
        if not causes:
            rows.append(PlanRow(stage, 0, reuse[stage], "published"))
        for i, (why, n) in enumerate(causes.most_common()):
            rows.append(PlanRow(stage, n, 0 if i else reuse[stage], why))
    home = context.home
    existing = next(p for p in (home, *home.absolute().parents) if p.exists())
    return Plan(
        rows=tuple(rows),
        extractions=_by_store(nodes, context, extractions),
        free_bytes=shutil.disk_usage(existing).free,
        tokens_per_s=_measured_speed(context),
        hub_tasks=_hub_tasks(nodes, context),
        graphs=_graphs(nodes, context),
    )


def _by_store(
    nodes: ExperimentGraph, context: Preview, extractions: Mapping[str, ExtractionPlan | None]
) -> tuple[ExtractionPlan, ...]:
    """What each feature store lacks for all of its texts together, those of nodes of graphs and of their
    descriptions among them; shared texts count once."""
    groups: dict[tuple[str, tuple[str, ...]], list[Node]] = {}
    for node in nodes.graph:
        if extractions.get(node.id) is not None:
            target = target_of(node, context)
            groups.setdefault((target.identity.store_id, target.arrays), []).append(node)
    plans: list[ExtractionPlan] = []
    for first, *others in groups.values():
        plan = extractions[first.id]
        if others:
            corpora = [context.corpus(node.input("corpus")) for node in (first, *others)]
            texts, digests = each_once([c.texts for c in corpora], [c.digests for c in corpora])
            plan = plan_extraction(target_of(first, context), context.home, texts, digests)
        assert plan is not None
        plans.append(plan)
    return tuple(plans)


def _graphs(nodes: ExperimentGraph, context: Preview) -> dict[str, dict[str, int]]:
    built = {task: context.built.get(node.id) for task, node in nodes.corpora.items()}
    return {task: n for task, c in built.items() if c is not None and (n := c.graph_counts())}


def _hub_tasks(nodes: ExperimentGraph, context: Preview) -> tuple[str, ...]:
    waiting = (
        cell.task
        for cell in nodes.experiment.evaluation_cells
        for role in cell.config.roles
        if not context.is_known(corpus_input(nodes.corpora[texts_name(cell.task, role)]))
    )
    return tuple(dict.fromkeys(waiting))


def _reason(
    node: Node, explainer: Explainer, context: Preview, extraction: ExtractionPlan | None
) -> str | None:
    """Why a node would run (with its plan, if it extracts); None if it would be reused."""
    published = context.artifacts.is_done(node.ref)
    if published and node.stage == Extract.name and extraction is None:
        return "its texts are not published (any more)"
    if published and extraction is not None and not extraction.nothing_to_do:
        n_cells = sum(map(len, extraction.cells.values()))
        return f"{extraction.n_new_texts} texts and {n_cells} cells are not in the feature store (any more)"
    return None if published else explainer.why(node.spec).headline


def _measured_speed(context: RunContext) -> float | None:
    """Tokens per second of the latest extraction that computed anything."""
    for manifest in reversed(list(context.artifacts.all(Extract.name))):
        tokens = manifest.summary.get("n_tokens_computed", 0)
        seconds = manifest.provenance.get("seconds", 0)
        if tokens and seconds:
            return tokens / seconds
    return None


def why_stage(nodes: ExperimentGraph, home: Path, stage: str) -> list[tuple[str, Explanation]]:
    """For every node of a stage that would run: its label and how it differs from what is published.

    Raises:
        NotFoundError: the experiment has no such stage, or all of it is published.
    """
    stages = {n.stage for n in nodes.graph}
    if stage not in stages:
        raise NotFoundError(
            f"there is no stage {quoted(stage)} in this experiment; it has {', '.join(sorted(stages))}"
        )
    context = Preview(nodes.graph, home, nodes.experiment.runtime)
    waiting = [n for n in nodes.graph if n.stage == stage and not stage_of(n).is_done(n, context)]
    if not waiting:
        raise NotFoundError(
            f"every {stage} of this experiment is published; nothing of it would run"
        )
    explainer = Explainer(context.artifacts, nodes.graph.specs)
    return [(n.label, explainer.why(n.spec)) for n in waiting]
