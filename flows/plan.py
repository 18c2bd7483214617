"""Planning a run: what would run, why, and at what cost; writes nothing."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.evaluations import texts_name
from permafrost.flows.graph import Node
from permafrost.flows.nodes.extraction import Extract, plan_of, planned, target_of
from permafrost.flows.nodes.graphs import are_descriptions, left_out_note
from permafrost.flows.nodes.reading import corpus_input
from permafrost.flows.preview import Preview
from permafrost.flows.times import (
    EarlierTimes,
    Estimate,
    StageTime,
    Work,
    duration,
    estimate,
    stage_time,
    work_of,
)
from permafrost.flows.unread import unread_notes
from permafrost.flows.why.explanation import Explanation, new_places
from permafrost.flows.why.reasons import STORED, Reasons
from permafrost.stages.extraction.planning import ExtractionPlan, bytes_needed
from permafrost.storage.errors import NotFoundError
from permafrost.storage.quoting import counted, quoted
from permafrost.storage.texts import each_once


@dataclass(frozen=True)
class PlanRow:
    """Nodes of one stage that would run for the same reason."""

    stage: str
    n_run: int
    n_reuse: int
    """Of the whole stage; in the first of its rows."""
    why: str
    nodes: tuple[str, ...] = ()
    """Labels of those that would run."""


@dataclass(frozen=True)
class Plan:
    """What a run of an experiment would do."""

    rows: tuple[PlanRow, ...]
    extractions: tuple[ExtractionPlan, ...]
    """One per feature store, or several if different arrays of it are made from different texts."""
    free_bytes: int
    times: tuple[StageTime, ...]
    """Of the stages that would run anything, taken from what earlier runs took."""
    hub_tasks: tuple[str, ...] = ()
    """Evaluation tasks whose texts are not counted, as they are known only after download from the hub."""
    graphs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What the corpora with graphs that would be built consist of, by task."""
    untrained: Mapping[str, str] = field(default_factory=dict)
    """Adapted backbones by the `store_id` of an extraction of theirs, which is a placeholder until they are
    trained."""
    as_published: tuple[str, ...] = ()
    """Backbones that could not be reached, whose published sizes are taken. Tokens are those of another
    tokenizer, ids of stores are placeholders, and what a run would reuse is not known."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Tasks whose data are not on this machine, each with why they were not found. Their texts are not
    counted, and everything on them counts as to be run."""
    notes: tuple[str, ...] = ()
    """On the experiment, a sentence each."""

    @property
    def n_bytes(self) -> int:
        """Bytes that all extractions would write."""
        return sum(e.n_bytes for e in self.extractions)

    @property
    def n_tokens(self) -> int:
        """Tokens that would go through the backbone."""
        return sum(e.n_tokens for e in self.extractions)

    @property
    def n_bytes_needed(self) -> int:
        """Bytes that have to be free: what is written, and what is left free beside it."""
        return bytes_needed(self.n_bytes)

    @property
    def fits(self) -> bool:
        """Whether the disk has room for the extractions."""
        return self.n_bytes_needed <= self.free_bytes

    @property
    def seconds(self) -> float | None:
        """Estimated time of everything, one after the other; None if there is no estimate for anything."""
        known = [t.seconds for t in self.times if t.seconds is not None]
        return sum(known) if known or not self.times else None

    @property
    def n_unknown(self) -> int:
        """Nodes that would run without an estimate."""
        return sum(t.n_unknown for t in self.times)

    def time_text(self) -> str:
        """The estimate as text."""
        if not self.times:
            return "estimated time: none, nothing would run"
        if self.seconds is None:
            return "estimated time: no estimate yet, as nothing of the kind ran under this home"
        unknown = f"; no estimate yet for {self.n_unknown:,} of them" if self.n_unknown else ""
        n = sum(t.n_run for t in self.times)
        order = ", one after the other" if n > 1 else ""
        return (
            f"estimated time: about {duration(self.seconds)} for {counted(n, 'step')}{order}, from what "
            f"earlier runs took{unknown}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        stores = [
            {
                # The id follows from weights that do not exist yet.
                "store_id": None
                if e.store_id in self.untrained or self.as_published
                else e.store_id,
                "adapted": self.untrained.get(e.store_id),
                "n_texts": e.n_texts,
                "n_new_texts": e.n_new_texts,
                "n_cut": e.n_cut,
                "n_tokens": e.n_tokens,
                "tokens_exact": e.exact,
                "bytes": e.n_bytes,
                "bytes_per_array": e.bytes_per_array,
            }
            for e in self.extractions
        ]
        return {
            "stages": [asdict(r) for r in self.rows],
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
            "times": [asdict(t) for t in self.times],
            "hub_tasks": list(self.hub_tasks),
            "as_published": list(self.as_published),
            "missing": dict(self.missing),
            "graphs": {task: dict(counts) for task, counts in self.graphs.items()},
            "notes": list(self.notes),
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
    reasons = Reasons(nodes.graph, context, extractions, all_told=True)
    by_store = _by_store(nodes, context, extractions)
    home = context.home
    existing = next(p for p in (home, *home.absolute().parents) if p.exists())
    return Plan(
        rows=_rows(nodes, reasons),
        extractions=by_store,
        free_bytes=shutil.disk_usage(existing).free,
        times=_times(reasons, context, extractions, by_store),
        hub_tasks=_hub_tasks(nodes, context),
        graphs=_graphs(nodes, context),
        untrained=_untrained(nodes),
        notes=(*unread_notes(nodes), *_left_out(nodes, context)),
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
            target = target_of(first, context)
            plan = plan_of(target, context, texts, digests)
        assert plan is not None
        plans.append(plan)
    return tuple(plans)


def _graphs(nodes: ExperimentGraph, context: Preview) -> dict[str, dict[str, int]]:
    built = {task: context.built.get(node.id) for task, node in nodes.corpora.items()}
    return {task: n for task, c in built.items() if c is not None and (n := c.graph_counts())}


def _left_out(nodes: ExperimentGraph, context: Preview) -> tuple[str, ...]:
    """Of descriptions that would be written."""
    built = [
        (node.run_facts["task"], context.built.get(node.id))
        for node in nodes.graph
        if are_descriptions(node)
    ]
    return left_out_note({"task": task} | c.counts() for task, c in built if c is not None)


def _untrained(nodes: ExperimentGraph) -> dict[str, str]:
    return {
        target.identity.store_id: stores.backbone
        for stores in nodes.stores.values()
        for target in stores.targets
        if stores.backbone is not None
    }


def _hub_tasks(nodes: ExperimentGraph, context: Preview) -> tuple[str, ...]:
    waiting = (
        cell.task
        for cell in nodes.experiment.vector_cells
        if not cell.config.texts_known
        for role in cell.config.roles
        if not context.is_known(corpus_input(nodes.corpora[texts_name(cell.task, role)]))
    )
    return tuple(dict.fromkeys(waiting))


def _rows(nodes: ExperimentGraph, reasons: Reasons) -> tuple[PlanRow, ...]:
    """Stage by stage, a row for all nodes with the same reason; all that are new share one."""
    rows: list[PlanRow] = []
    for stage in dict.fromkeys(n.stage for n in nodes.graph):
        mine = [node for node in nodes.graph if node.stage == stage]
        causes: dict[str, list[tuple[Node, Explanation]]] = {}
        for node in (n for n in mine if n.id in reasons.waiting):
            found = reasons.why(node)
            causes.setdefault("" if found.is_new else found.reason, []).append((node, found))
        n_published = len(reasons.earlier.of_stage(stage)) if "" in causes else 0
        n_reuse = len(mine) - sum(map(len, causes.values()))
        if not causes:
            rows.append(PlanRow(stage, 0, n_reuse, "published"))
        for i, (why, some) in enumerate(sorted(causes.items(), key=lambda c: -len(c[1]))):
            labels = tuple(node.label for node, _ in some)
            new = new_places(stage, [n.origins[0] for n, _ in some], n_published)
            told = (why or new) + _amount([found.amount for _, found in some])
            rows.append(PlanRow(stage, len(some), 0 if i else n_reuse, told, labels))
    return tuple(rows)


def _amount(amounts: Sequence[str]) -> str:
    """What extractions come to, if each comes to the same; together they may share texts."""
    same = amounts[0] if len(set(amounts)) == 1 else ""
    each = " each" if len(amounts) > 1 and same != STORED else ""
    return f" ({same}{each})" if same else ""


def _times(
    reasons: Reasons,
    context: Preview,
    extractions: Mapping[str, ExtractionPlan | None],
    by_store: Sequence[ExtractionPlan],
) -> tuple[StageTime, ...]:
    """What the nodes that wait will take, stage by stage."""

    def counts(ref: str) -> Mapping[str, int] | None:
        if (built := context.built.get(ref)) is not None:
            return built.counts()
        manifest = reasons.earlier.manifest(ref)
        return None if manifest is None else manifest.summary

    took = EarlierTimes(reasons.earlier, counts)
    # Texts that several extractions share are computed once.
    asked = sum(e.n_tokens for e in extractions.values() if e)
    share = sum(e.n_tokens for e in by_store) / asked if asked else 1.0
    found: dict[tuple[str, str], list[Estimate | None]] = {}
    for node in reasons.waiting.values():
        origin, device = node.origins[0], context.device_of(node)
        work = work_of(node.spec, counts)
        if node.stage == Extract.name and (plan := extractions.get(node.id)) is not None:
            work = Work(plan.n_tokens * share, "tokens")
        estimates = found.setdefault((node.stage, device), [])
        if node.stage == Extract.name and (work is None or work.amount == 0):
            estimates.append(None if work is None else Estimate(0.0, (), work.unit))
        else:
            earlier = took.of(node.spec, origin, device)
            estimates.append(estimate(earlier, work, origin.task))
    return tuple(stage_time(*named, some) for named, some in found.items())


def why_stage(nodes: ExperimentGraph, home: Path, stage: str) -> list[tuple[str, Explanation]]:
    """For every node of a stage that would run, its label and how it differs from what is published; none if
    all of it is published.

    Raises:
        NotFoundError: the experiment has no such stage.
    """
    stages = {n.stage for n in nodes.graph}
    if stage not in stages:
        raise NotFoundError(
            f"there is no stage {quoted(stage)} in this experiment; it has {', '.join(sorted(stages))}"
        )
    context = Preview(nodes.graph, home, nodes.experiment.runtime)
    extractions = {
        node.id: planned(node, context)
        for node in nodes.graph
        if stage == node.stage == Extract.name
    }
    reasons = Reasons(nodes.graph, context, extractions, all_told=False)
    waiting = (node for node in reasons.waiting.values() if node.stage == stage)
    return [(node.label, reasons.why(node)) for node in waiting]
