"""The pipeline flow: corpus -> extract -> fit -> score -> report, over methods x tasks x seeds."""

import base64
import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

from prefect import flow
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import TaskRunSort
from prefect.runtime import deployment as this_deployment
from prefect.runtime import flow_run as this_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Crashed
from rich.console import Console
from rich.table import Table

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.checks import check
from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.choice import Dask, EngineChoice, Prefect, Serial, parse_engine
from permafrost.flows.engine.engine import Engine
from permafrost.flows.engine.prefect import PrefectEngine
from permafrost.flows.engine.progress import Display, NodeProgress
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.experiment import load_experiment
from permafrost.flows.gaps import report_with_gaps
from permafrost.flows.home import open_home
from permafrost.flows.preview import Preview
from permafrost.flows.runs import RunRecord, begin_run, end_run
from permafrost.flows.server import prefect_api
from permafrost.flows.stopping import STOP
from permafrost.flows.terminal import Terminal, render, render_fitting
from permafrost.storage.drafts import remove_drafts_of_dead_processes
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError

LATEST_FIRST = TaskRunSort.EXPECTED_START_TIME_DESC
LAST_RECORD_S = 0.6
"""Maximum time for recording a stop, so that the process still ends within two seconds."""
MOST_READ = 200
"""Task runs that a server tells of at once."""
RECORDING_S = 5.0
"""Maximum time to wait for the server to record a run."""


@dataclass
class PipelineResult:
    """The result of a run."""

    title: str
    report: Path
    """The HTML report."""
    computed: Counter[str] = field(default_factory=Counter)
    """Nodes computed, by stage."""
    reused: Counter[str] = field(default_factory=Counter)
    """Nodes reused, by stage."""

    def table(self) -> Table:
        """The results, for a terminal."""
        return render(self.title, self.results())

    def tables(self, console: Console) -> list[Table]:
        """The results, in as many tables as needed to fit the width of `console`."""
        return render_fitting(self.title, self.results(), console)

    def notes(self) -> list[str]:
        """Notes to print below the results."""
        return self.results()["notes"]

    def results(self) -> dict[str, Any]:
        """The numbers of the report: `summary.json`."""
        return read_json(self.report.with_name("summary.json"))


@flow(name="pipeline", persist_result=False)
def pipeline(
    experiment: str | dict[str, Any],
    home: str = ".permafrost",
    overrides: list[str] | None = None,
    engine: str | None = None,
) -> PipelineResult:
    """Run a whole experiment; published artifacts are reused.

    Args:
        experiment: path of the experiment file, or its fields.
        home: where features and artifacts are stored: a folder, or the URL of an object store.
        overrides: `path.to.field=value` each.
        engine: what runs the nodes, see `permafrost.run`; if not given, `runtime.engine` of the experiment,
            and `prefect` if that names none.
    """
    with _listening(), _stop_recorded():
        return _run(_checked(experiment, home, overrides or []), engine)


@dataclass(frozen=True)
class _Checked:
    """An experiment that was found right, and what was read to find that out."""

    nodes: ExperimentGraph
    context: RunContext


def _checked(experiment: str | dict[str, Any], home: str, overrides: Sequence[str]) -> _Checked:
    with Display(Terminal()) as display:
        folder = open_home(home, NodeProgress(display, f"pull {home}"))
    source = Path(experiment) if isinstance(experiment, str) else experiment
    nodes = build_graph(load_experiment(source, overrides))
    return _Checked(nodes, check_showing(nodes, folder))


def check_showing(nodes: ExperimentGraph, home: Path) -> Preview:
    """As `check`; the corpora that it builds show how far they are."""
    with Display(Terminal()) as display:
        return check(nodes, home, partial(NodeProgress, display))


def _run(checked: _Checked, engine: str | None) -> PipelineResult:
    """Run an experiment inside a flow run, and show its results there."""
    nodes, runtime = checked.nodes, checked.nodes.experiment.runtime
    choice = parse_engine(engine or runtime.engine or "prefect")
    result = run_graph(nodes, checked.context, _engine(choice, runtime), Terminal())
    _show_in_prefect(nodes.experiment.name, result)
    return result


def _engine(choice: EngineChoice, runtime: RunRuntime) -> Engine:
    match choice:
        case Serial():
            return SerialEngine()
        case Prefect():
            return PrefectEngine(runtime.choose_workers())
        case Dask():
            # Imported here: it takes a second that no other run has to wait.
            from permafrost.flows.engine.dask import DaskEngine

            return DaskEngine(choice, runtime.choose_workers())


def run_serially(
    experiment: Path | Mapping[str, Any], home: Path, overrides: Sequence[str] = ()
) -> PipelineResult:
    """Run a whole experiment in this process, node by node, without server, threads or Prefect."""
    nodes = build_graph(load_experiment(experiment, overrides))
    return run_graph(nodes, check_showing(nodes, home), SerialEngine(), Terminal())


def _listening() -> AbstractContextManager[None]:
    """A deployed run has a process to itself, and there Prefect alone listens to signals: it waits for nodes
    that do not look."""
    return nullcontext() if this_deployment.id is None else STOP.listening()


def _stop_recorded() -> AbstractContextManager[None]:
    """For the inside of a flow run."""
    return STOP.last_act(partial(_record_stop, UUID(this_run.id)), LAST_RECORD_S)


def _record_stop(run: UUID) -> None:
    """Tell the server that a run has been stopped, if Prefect has not, as it waits for stages that do not
    check."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        # Who cancels a run is told by Prefect's worker, which saw to it that we were stopped.
        if state is None or not (state.is_final() or state.is_cancelling()):
            client.set_flow_run_state(run, Crashed(message=f"Stopped by {STOP.cause}."), force=True)


def run_embedded(
    experiment: str | dict[str, Any],
    home: str,
    overrides: Sequence[str],
    engine: str | None = None,
) -> PipelineResult:
    """Run the pipeline from a program, with the configured Prefect server or an embedded one.

    Raises:
        InputError: what `check` finds, before a server starts.
        PermafrostError: as `run_graph`.
    """
    checked = _checked(experiment, home, overrides)

    # `pipeline` as Prefect shows it, of what is checked already: to lay a graph out takes seconds.
    @flow(name=pipeline.name, description=pipeline.description, persist_result=False)
    def run(
        experiment: str | dict[str, Any], home: str, overrides: list[str], engine: str | None
    ) -> PipelineResult:
        with _stop_recorded():
            return _run(checked, engine)

    # The heartbeat thread of a flow run costs a fixed second at the end, and nothing watches it here.
    with (
        prefect_api() as is_ours,
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        state = run(experiment, home, list(overrides), engine, return_state=True)
        result = state.result(raise_on_failure=False)
        n_nodes, nothing_new = 1, False
        if not isinstance(result, BaseException):
            n_nodes, nothing_new = len(checked.nodes.graph), not result.computed
        if is_ours and not nothing_new and state.state_details.flow_run_id is not None:
            _wait_for_records(state.state_details.flow_run_id, n_nodes)
        return state.result()


def _wait_for_records(flow_run: UUID, n_nodes: int) -> None:
    """Give a server that ends with us time to record the last stages: it drops what it has not recorded. A
    run that computed nothing is not worth the seconds.

    Args:
        flow_run: its id.
        n_nodes: stages that it has, at least.
    """
    runs = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    deadline = time.monotonic() + RECORDING_S
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            task_runs = client.read_task_runs(
                flow_run_filter=runs, limit=MOST_READ, sort=TaskRunSort.EXPECTED_START_TIME_DESC
            )
            if len(task_runs) >= min(n_nodes, MOST_READ) and all(
                run.state is not None and run.state.is_final() for run in task_runs
            ):
                return
            time.sleep(0.1)


def run_graph(
    nodes: ExperimentGraph, context: RunContext, engine: Engine, console: Console
) -> PipelineResult:
    """Run every node that is not done; a failed node stops only the nodes that depend on it.

    Args:
        nodes: what `check` found right.
        context: from `check`.
        engine: what runs them.
        console: where progress and failures are shown.

    Raises:
        PermafrostError: nodes failed; everything that does not depend on them is finished and published.
    """
    e, home = nodes.experiment, context.home
    remove_drafts_of_dead_processes(home)
    record = RunRecord(
        experiment=e.name,
        finished=_now(),
        artifacts=tuple(node.id for node in nodes.graph),
        stores=tuple(t.identity.store_id for s in nodes.stores.values() for t in s.targets),
        engine=engine.name,
        workers=engine.n_workers,
        threads=tuple(sorted({engine.threads_of(node, context) for node in nodes.graph})),
    )
    begin_run(home, record)
    with Display(console) as display:
        outcomes = engine.run(nodes.graph, context, display)
    failed = [o for o in outcomes.values() if o.state == "failed"]
    if failed:
        raise_first(failed, outcomes, report_with_gaps(nodes, context, outcomes))
    report = context.artifacts.open(nodes.report.ref)  # fetched, if another machine made it
    end_run(home, record.model_copy(update={"finished": _now()}))
    counted = {
        state: Counter(o.node.stage for o in outcomes.values() if o.state == state)
        for state in ("computed", "reused")
    }
    return PipelineResult(e.report.title, report / "report.html", **counted)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def raise_first(
    failed: Sequence[Outcome], outcomes: Mapping[str, Outcome], report: Path | None
) -> NoReturn:
    """Raise the error of a failed node, preferably one that is not a user's error, and add how many nodes
    failed and were skipped, where the report of the rest is, and how to resume."""
    own = [o for o in failed if not isinstance(o.error, InputError)]
    first = (own or list(failed))[0]
    error = first.error
    assert error is not None, "a failed node has an error"
    error.add_note(f"while running '{first.node.label}'")
    if others := [o.node.label for o in failed if o is not first]:
        error.add_note(f"{len(others)} more failed: {', '.join(others[:3])}")
    n_skipped = sum(o.state == "skipped" for o in outcomes.values())
    if n_skipped:
        error.add_note(f"{n_skipped} skipped, which depend on failed ones")
    if report is not None:
        error.add_note(f"everything else is finished; a report with the gaps marked is {report}")
    error.add_note("the same command goes on from here")
    raise error


def _show_in_prefect(name: str, result: PipelineResult) -> None:
    folder = result.report.parent
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
        # Embedded in the URL, as a server elsewhere cannot read this machine's files.
        content = base64.b64encode(picture.read_bytes()).decode()
        create_image_artifact(
            f"data:image/png;base64,{content}",
            key=f"{name}-{picture.stem.replace('_', '-')}",
            description=f"Figure of the report: {picture.stem.replace('_', ' ')}",
        )
