"""The pipeline flow: corpus -> extract -> fit -> score -> report, over methods x tasks x seeds."""

import base64
import datetime
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
from prefect import flow
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import TaskRunSort
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run as this_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Crashed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote
from rich.console import Console
from rich.table import Table

from flows.board import Board, StageProgress
from flows.checks import check_dag
from flows.dag import Dag, build_dag
from flows.experiment import load_experiment
from flows.home import open_home
from flows.nodes import LEVELS, Node
from flows.results_table import render, render_fitting
from flows.run_stage import run_stage
from flows.runs import RunRecord, write_run
from flows.server import prefect_api
from flows.stopping import STOP
from flows.terminal import Terminal
from storage.drafts import remove_drafts_of_dead_processes
from storage.durable import read_json

LATEST_FIRST = TaskRunSort.EXPECTED_START_TIME_DESC
LAST_RECORD_S = 0.6
"""How long the record of a stop may take, so that the process still ends in two seconds."""
RECORDING_S = 5.0
"""How long to wait, at most, until the server has recorded a run."""


@dataclass
class PipelineResult:
    """What a run did."""

    title: str
    report: Path
    """The HTML report."""
    computed: Counter[str] = field(default_factory=Counter)
    """Nodes computed, by stage."""
    reused: Counter[str] = field(default_factory=Counter)
    """Nodes reused, by stage."""

    def table(self) -> Table:
        """The results, for a terminal."""
        return render(self.title, self._summary())

    def tables(self, console: Console) -> list[Table]:
        """The results, in as many tables as fit the width of `console`."""
        return render_fitting(self.title, self._summary(), console)

    def notes(self) -> list[str]:
        """Sentences that belong under the results."""
        return self._summary()["notes"]

    def _summary(self) -> dict[str, Any]:
        return read_json(self.report.with_name("summary.json"))


@flow(name="pipeline", persist_result=False)
def pipeline(
    experiment: str, home: str = ".permafrost", overrides: list[str] | None = None
) -> PipelineResult:
    """Run a whole experiment; what is published already is reused.

    Args:
        experiment: path of the experiment file.
        home: where features and artifacts are kept: a folder, or the URL of an object store.
        overrides: `path.to.field=value` each.
    """
    console = Terminal()
    with STOP.last_act(partial(_record_stop, UUID(this_run.id)), LAST_RECORD_S):
        with Board(console) as board:
            folder = open_home(home, StageProgress(board, f"pull {home}"))
        remove_drafts_of_dead_processes(folder)
        dag = build_dag(load_experiment(Path(experiment), overrides or []), folder)
        return run_dag(dag, console)


def _record_stop(run: UUID) -> None:
    """Tell the server that a run ends here, if Prefect has not: it waits for stages that do not look."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        if state is None or not state.is_final():
            client.set_flow_run_state(run, Crashed(message=f"Stopped by {STOP.cause}."), force=True)


def run_embedded(experiment: str, home: str, overrides: list[str]) -> PipelineResult:
    """Run the pipeline from a program, with the Prefect server that is configured, or one of our own."""
    # The heartbeat thread of a flow run costs a fixed second at its end, and nothing watches it here.
    with prefect_api(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        state = pipeline(experiment, home, overrides, return_state=True)
        if state.state_details.flow_run_id is not None:
            _wait_for_records(state.state_details.flow_run_id)
        return state.result()


def _wait_for_records(flow_run: UUID) -> None:
    """Give the server time to record the last stages: the embedded one drops them if we leave at once."""
    runs = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    deadline = time.monotonic() + RECORDING_S
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            found = client.read_task_runs(
                flow_run_filter=runs, limit=200, sort=TaskRunSort.EXPECTED_START_TIME_DESC
            )
            if all(run.state is not None and run.state.is_final() for run in found):
                return
            time.sleep(0.1)


def run_dag(dag: Dag, console: Console) -> PipelineResult:
    """Run every node inside a flow run, level by level, the nodes of a level side by side.

    Raises:
        InputError: as of `check_dag`, before anything runs.
        PermafrostError: a node failed; the others of its level were still run.
    """
    check_dag(dag)
    report = dag.report_node.spec.ref
    result = PipelineResult(
        dag.experiment.report.title, dag.artifacts.folder(report) / "report.html"
    )
    runner = ThreadPoolTaskRunner(max_workers=dag.experiment.runtime.n_workers)
    with Board(console) as board, runner:
        for level in LEVELS:
            nodes = [n for n in dag.nodes if n.level == level]
            # What runs the backbone, one after the other: it is shared, and so is the device.
            alone = level in ("extract", "backbone")
            for together in [[n] for n in nodes] if alone else [nodes]:
                if together:
                    _run_level(dag, together, runner, board, result)
            if level in ("backbone", "evaluate"):
                dag.backbone.drop()
    dag.artifacts.open(report)  # fetched, if another machine made it
    write_run(
        dag.home,
        RunRecord(
            experiment=dag.experiment.name,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            artifacts=tuple(str(n.spec.ref) for n in dag.nodes),
            stores=tuple(t.identity.store_id for s in dag.stores.values() for t in s.targets),
        ),
    )
    _show_in_prefect(dag, result)
    return result


def _run_level(
    dag: Dag,
    nodes: list[Node],
    runner: ThreadPoolTaskRunner[Any],
    board: Board,
    result: PipelineResult,
) -> None:
    workers = dag.experiment.runtime.n_workers
    threads = max(1, torch.get_num_threads() // min(len(nodes), workers))
    bar = board.open(nodes[0].level, len(nodes), "stages") if len(nodes) > 1 else None
    # Equal keys are one artifact: a control may be the same for several methods' names.
    futures = {
        node.spec.ref: (
            node,
            runner.submit(
                run_stage,
                {
                    "label": node.label,
                    # quote: Prefect looks for futures inside parameters, and a DAG is large.
                    "dag": quote(dag),
                    "node": quote(node),
                    "board": quote(board),
                    "threads": threads,
                },
            ),
        )
        for node in {n.spec.ref: n for n in nodes}.values()
    }
    failures: list[tuple[Node, BaseException]] = []
    for node, future in futures.values():
        _wait_for(future)
        state = future.state
        if state.is_completed():
            outcome = result.reused if state.name == "Cached" else result.computed
            outcome[node.spec.stage] += 1
        else:
            failures.append((node, state.result(raise_on_failure=False)))
            board.say(f"failed {node.label}", "red")
        if bar is not None:
            board.move(bar, 1)
    if bar is not None:
        board.close(bar)
    if failures:
        raise_first(failures)


def _wait_for(future: PrefectFuture[Any]) -> None:
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    STOP.wait_for(ended)
    future.wait()


def raise_first(failures: list[tuple[Node, BaseException]]) -> None:
    """Raise the first failure, and say how many there are."""
    node, error = failures[0]
    if len(failures) > 1:
        names = ", ".join(n.label for n, _ in failures[1:4])
        error.add_note(f"{len(failures) - 1} more failed: {names}")
    error.add_note(f"while running '{node.label}'")
    raise error


def _show_in_prefect(dag: Dag, result: PipelineResult) -> None:
    folder = dag.artifacts.folder(dag.report_node.spec.ref)
    name = dag.experiment.name
    create_markdown_artifact(
        (folder / "results.md").read_text(encoding="utf-8"),
        key=f"{name}-results",
        description="Results",
    )
    create_markdown_artifact(
        (folder / "tables.md").read_text(encoding="utf-8"),
        key=f"{name}-tables",
        description="The other tables of the report",
    )
    create_link_artifact(
        result.report.resolve().as_uri(),
        key=f"{name}-report",
        description="The whole report, with figures",
    )
    for picture in sorted((folder / "figures").glob("*.png")):
        # Inside the URL: a server elsewhere cannot read this machine's files.
        content = base64.b64encode(picture.read_bytes()).decode()
        create_image_artifact(
            f"data:image/png;base64,{content}",
            key=f"{name}-{picture.stem.replace('_', '-')}",
            description=f"Figure of the report: {picture.stem.replace('_', ' ')}",
        )
