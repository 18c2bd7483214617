"""Recording a run: what it was asked for before anything is made, and what came of it, however it ends."""

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.context import RunContext
from permafrost.flows.engine.engine import Engine
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.graph import Node
from permafrost.flows.grid_points import grid_points
from permafrost.flows.records.history import (
    CellOf,
    RunBegun,
    RunEnded,
    RunScore,
    UsedArtifact,
    begin,
    by_stage,
    end,
    run_name,
)
from permafrost.flows.records.history import Outcome as RunOutcome
from permafrost.flows.records.runs import RunRecord, begin_run, end_run
from permafrost.flows.stopping import STOP, Stopped
from permafrost.storage.adapted_stores import known_ids
from permafrost.storage.drafts import owner
from permafrost.storage.errors import PermafrostError
from permafrost.storage.gate import pass_gate
from permafrost.storage.keys import digest

RESULTS = "results.parquet"
LAST_RECORD_S = 0.4
"""How long a run that is stopped by force may take to record it."""
_COLUMNS = ("method", "task", "seed", "role", "metric", "dev", "test", "choice", "key")


class RunUnderWay:
    """A run that has begun, of which both records are kept: that of the history, and the one that says what
    garbage collection must not take."""

    def __init__(
        self,
        nodes: ExperimentGraph,
        context: RunContext,
        engine: Engine,
        overrides: Sequence[str],
    ) -> None:
        self._nodes, self._context, self._started = nodes, context, time.monotonic()
        e, home = nodes.experiment, context.home
        numbers = {engine.threads_of(node, context) for node in nodes.graph}
        threads = tuple(sorted(n for n in numbers if n is not None))
        config, now = e.model_dump(mode="json"), _now()
        known = RunRecord(
            experiment=e.name,
            finished=now,
            artifacts=tuple(node.id for node in nodes.graph),
            stores=self._stores(),
            engine=engine.name,
            workers=engine.n_workers,
            threads=threads,
        )
        used, corpora = used_artifacts(nodes), {t: nodes.corpora[t].id for t in nodes.corpora}

        def record(number: int) -> RunBegun:
            return RunBegun(
                experiment=e.name,
                number=number,
                begun=now,
                overrides=tuple(overrides),
                config_digest=digest(config),
                config=config,
                artifacts=used,
                stores=known.stores,
                corpora=corpora,
                engine=engine.name,
                workers=engine.n_workers,
                threads=threads,
                process=owner(),
            )

        # First of all: from here on nothing that this run uses is removed.
        begin_run(home, known)
        self._known, self._begun = known, begin(home, e.name, record)
        self._done_before: dict[str, Node] = {}
        self._ending = threading.Lock()

    def look(self) -> None:
        """See what there is already; what is being removed right now is waited for, and gone then."""
        pass_gate(self._context.home, STOP.check)
        self._done_before = self._done()

    @property
    def name(self) -> str:
        """As people write it: `mine@2`."""
        return run_name(self._begun.experiment, self._begun.number)

    def done(self, outcomes: Mapping[str, Outcome], report: Path) -> None:
        """Every node is done."""
        scores, found = scores_of(report.with_name(RESULTS)), {"stores": self._stores()}
        # Until it counts as ended it counts as going on, and from here on as the latest.
        end_run(self._context.home, self._known.model_copy(update={**found, "finished": _now()}))
        self._end("done", outcomes, scores, None)

    def extracted(self, outcomes: Mapping[str, Outcome]) -> None:
        """All that needs the backbone is done, and nothing else was to be: there are no scores. For garbage
        collection the experiment has not finished, so that it keeps what was made for the rest."""
        self._end("done", outcomes, (), None)

    def failed(
        self, outcomes: Mapping[str, Outcome], report: Path | None, error: BaseException | None
    ) -> None:
        """Nodes have failed; the others are done, and `report` is of those."""
        # The nodes are to be told of, not that their run could not be recorded.
        with contextlib.suppress(PermafrostError, OSError):
            scores: tuple[RunScore, ...] = ()
            if report is not None:
                # Gone if another run of the experiment has ended meanwhile.
                with contextlib.suppress(OSError):
                    scores = scores_of(report.with_name(RESULTS))
            self._end("failed", outcomes, scores, error)

    def broken_off(self, outcome: RunOutcome, error: BaseException | None) -> None:
        """Something else than a node has ended the run; what it made is told by what is there now."""
        new = [node.stage for i, node in self._done().items() if i not in self._done_before]
        # What ends the run is what its user has to hear of, not that it could not be recorded.
        with contextlib.suppress(PermafrostError, OSError):
            self._write(
                outcome=outcome,
                computed=by_stage(new),
                reused=by_stage(node.stage for node in self._done_before.values()),
                error=error,
            )

    def _end(
        self,
        outcome: RunOutcome,
        outcomes: Mapping[str, Outcome],
        scores: Sequence[RunScore],
        error: BaseException | None,
    ) -> None:
        counted = {
            state: by_stage(o.node.stage for o in outcomes.values() if o.state == state)
            for state in ("computed", "reused", "failed", "skipped")
        }
        self._write(outcome, error, results=scores, **counted)

    def _write(self, outcome: RunOutcome, error: BaseException | None, **fields: Any) -> None:
        begun = self._begun
        if STOP.asked and outcome == "failed":
            # What fails after a signal has come fails because of it.
            outcome, error = "stopped", None
        ended = RunEnded(
            experiment=begun.experiment,
            number=begun.number,
            ended=_now(),
            seconds=round(time.monotonic() - self._started, 3),
            stores=self._stores(),
            outcome=outcome,
            error=_line(error),
            **fields,
        )
        # A process that leaves by force records that in a thread of its own; whoever is first is right.
        with self._ending:
            end(self._context.home, ended)

    def _done(self) -> dict[str, Node]:
        artifacts = self._context.artifacts
        return {node.id: node for node in self._nodes.graph if artifacts.is_done(node.ref)}

    def _stores(self) -> tuple[str, ...]:
        """Ids of the feature stores; those of an adapted backbone once it is trained."""
        named = [
            (name, target.identity)
            for stores in self._nodes.stores.values()
            for name, target in zip(stores.names, stores.targets, strict=True)
        ]
        return tuple(known_ids(self._context.artifacts, named))


@contextmanager
def recorded(
    nodes: ExperimentGraph, context: RunContext, engine: Engine, overrides: Sequence[str]
) -> Generator[RunUnderWay]:
    """A run inside the block is recorded, also one that an exception ends, or a signal while it is in the
    middle of long work."""
    run = RunUnderWay(nodes, context, engine, overrides)
    try:
        run.look()
        with STOP.last_act(partial(run.broken_off, "stopped", None), LAST_RECORD_S):
            yield run
    except (Stopped, KeyboardInterrupt):
        run.broken_off("stopped", None)
        raise
    except BaseException as error:
        run.broken_off("failed", error)
        raise


def used_artifacts(nodes: ExperimentGraph) -> tuple[UsedArtifact, ...]:
    """What every artifact of an experiment is of, in the order of the graph."""
    of: dict[str, dict[CellOf, None]] = {}
    points: dict[str, str] = {}

    def name(node: Node, cell: CellOf) -> None:
        of.setdefault(node.id, {})[cell] = None

    for task, node in nodes.corpora.items():
        name(node, CellOf(task=task))
    for (_, task, _), node in nodes.extractions.items():
        name(node, CellOf(task=task))
    for pretraining, node in nodes.pretrainings.items():
        task = nodes.experiment.pretrainings[pretraining].task
        name(node, CellOf(method=pretraining, task=task))
    for cell, candidates in nodes.candidates.items():
        for node, point in zip(
            candidates, grid_points([c.config for c in candidates]), strict=True
        ):
            name(node, _cell(cell))
            points[node.id] = point
    for group in (nodes.fits, nodes.scores, nodes.evaluations):
        for cell, node in group.items():
            name(node, _cell(cell))
    for (_, curve, task), node in nodes.probes.items():
        name(node, CellOf(method=curve, task=task))
    return tuple(
        UsedArtifact(
            ref=node.id,
            label=node.label,
            of=tuple(of.get(node.id, ())),
            candidate=points.get(node.id) or None,
        )
        for node in nodes.graph
    )


def _cell(name: tuple[str, str, int]) -> CellOf:
    method, task, seed = name
    return CellOf(method=method, task=task, seed=seed)


def scores_of(results: Path) -> tuple[RunScore, ...]:
    """The rows of a report's results."""
    rows = pq.read_table(results, columns=list(_COLUMNS)).to_pylist()
    return tuple(RunScore(**{**row, "choice": json.loads(row["choice"])}) for row in rows)


def _line(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return (str(error).splitlines() or [type(error).__name__])[0]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
