"""What would run and why, and what it would cost; writes nothing."""

import shutil
from collections import Counter
from dataclasses import dataclass
from typing import Any

from flows.dag import Dag
from flows.evaluations import evaluation_cells
from flows.nodes import Node
from stages.extraction.extract import DISK_MARGIN
from stages.extraction.planning import ExtractionPlan
from stages.mteb_evaluation import HubTask
from storage.errors import NotFoundError
from storage.explain import Explanation, explain
from storage.quoting import quoted


@dataclass(frozen=True)
class PlanRow:
    """Nodes of one stage that run for the same reason."""

    stage: str
    n_run: int
    n_reuse: int
    why: str


@dataclass(frozen=True)
class Plan:
    """What a run of an experiment would do."""

    rows: tuple[PlanRow, ...]
    extractions: tuple[ExtractionPlan, ...]
    """One per feature store."""
    free_bytes: int
    tokens_per_s: float | None
    """Measured in earlier extractions under this home; None if there was none."""
    hub_tasks: tuple[str, ...] = ()
    """Evaluation tasks to run whose texts are known only once the hub has given them; extracted then."""

    @property
    def n_bytes(self) -> int:
        """Bytes that all extractions will write."""
        return sum(e.n_bytes for e in self.extractions)

    @property
    def n_tokens(self) -> int:
        """Tokens that will go through the backbone."""
        return sum(e.n_tokens for e in self.extractions)

    @property
    def fits(self) -> bool:
        """Whether the extraction has room on the disk."""
        need = self.n_bytes
        return need == 0 or need + DISK_MARGIN <= self.free_bytes

    @property
    def seconds(self) -> float | None:
        """Estimated extraction time."""
        return self.n_tokens / self.tokens_per_s if self.tokens_per_s else None

    def time_text(self) -> str:
        """The estimate in words."""
        if self.seconds is None:
            return "time unknown (no earlier extraction under this home to go by)"
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
            # Over all stores; a text under two recipes counts twice.
            "n_texts": sum(e.n_texts for e in self.extractions),
            "n_new_texts": sum(e.n_new_texts for e in self.extractions),
            "n_tokens": self.n_tokens,
            "tokens_exact": all(e.exact for e in self.extractions),
            "bytes": self.n_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "seconds": self.seconds,
            "hub_tasks": list(self.hub_tasks),
        }


def make_plan(dag: Dag) -> Plan:
    """Compare every node with what is published."""
    extractions = dag.plan_extractions()
    by_node = dict(zip((n.spec.ref for n in dag.extract_nodes), extractions, strict=True))
    reuse: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for node in {n.spec.ref: n for n in dag.nodes}.values():
        stage = node.spec.stage
        reasons.setdefault(stage, Counter())
        why = reason(dag, node, by_node.get(node.spec.ref))
        if why is None:
            reuse[stage] += 1
        else:
            reasons[stage][why] += 1
    rows: list[PlanRow] = []
    for stage, found in reasons.items():
        if not found:
            rows.append(PlanRow(stage, 0, reuse[stage], "published"))
        for i, (why, n) in enumerate(found.most_common()):
            rows.append(PlanRow(stage, n, 0 if i else reuse[stage], why))
    existing = next(p for p in (dag.home, *dag.home.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    return Plan(tuple(rows), tuple(extractions), free, _measured_speed(dag), _hub_tasks(dag))


def _hub_tasks(dag: Dag) -> tuple[str, ...]:
    waiting = (
        cell.task
        for cell in evaluation_cells(dag.experiment)
        if isinstance(cell.config, HubTask)
        and not dag.is_done(dag.evaluation_nodes[cell.method, cell.task, cell.seed])
    )
    return tuple(dict.fromkeys(waiting))


def reason(dag: Dag, node: Node, extraction: ExtractionPlan | None) -> str | None:
    """Why a node would run (with its plan, if it extracts); None if it would be reused."""
    published = dag.artifacts.is_done(node.spec.ref)
    if published and extraction is not None and not extraction.nothing_to_do:
        n_cells = sum(map(len, extraction.cells.values()))
        return f"{extraction.n_new_texts} texts and {n_cells} cells are not in the feature store (any more)"
    return None if published else explain(dag.artifacts, node.spec, planned=dag.specs).headline


def _measured_speed(dag: Dag) -> float | None:
    """Tokens per second of the latest extraction that computed something."""
    for manifest in reversed(list(dag.artifacts.all("extract"))):
        tokens = manifest.summary.get("n_tokens_computed", 0)
        seconds = manifest.provenance.get("seconds", 0)
        if tokens and seconds:
            return tokens / seconds
    return None


def why_stage(dag: Dag, stage: str) -> list[tuple[str, Explanation]]:
    """For every node of a stage that would run: its label and how it differs from what is published.

    Raises:
        NotFoundError: the experiment has no such stage, or all of it is published.
    """
    stages = {n.spec.stage for n in dag.nodes}
    if stage not in stages:
        raise NotFoundError(
            f"there is no stage {quoted(stage)} in this experiment; it has {', '.join(sorted(stages))}"
        )
    nodes = [n for n in dag.nodes if n.spec.stage == stage and not dag.is_done(n)]
    if not nodes:
        raise NotFoundError(
            f"every {stage} of this experiment is published; nothing of it would run"
        )
    return [(n.label, explain(dag.artifacts, n.spec, planned=dag.specs)) for n in nodes]
