"""The pipeline flow: corpus -> extract -> fit -> score -> report, over methods x tasks x seeds."""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import TaskRunSort
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed

from permafrost.flows.deployed.flow_run import inside_flow_run, known_to_the_server, patiently
from permafrost.flows.deployed.parameters import (
    EngineParameter,
    ExperimentParameter,
    HomeParameter,
    OverridesParameter,
    RuntimeParameter,
    request,
)
from permafrost.flows.deployed.shown_in_prefect import (
    called,
    counts,
    experiment_tag,
    log_results,
    name_run,
    print_as_before,
    run_name,
    show_report,
)
from permafrost.flows.deployed.told_in_a_line import leave_tracebacks_out
from permafrost.flows.engine.engine import Engine
from permafrost.flows.engine.prefect import PrefectEngine
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.engine_choice import Dask, Prefect, Serial, parse_engine
from permafrost.flows.running import (
    Checked,
    PipelineResult,
    checked,
    raise_first,
    run_graph,
    run_serially,
)
from permafrost.flows.server.api import prefect_api
from permafrost.flows.terminal import Terminal

__all__ = [
    "PipelineResult",
    "pipeline",
    "raise_first",
    "run_checked",
    "run_serially",
]

MOST_READ = 200
"""Task runs that a server tells of at once."""
RECORDING_S = 5.0
"""Maximum time to wait for the server to record a run."""


# When the module is imported, as parameters that the flow does not have are refused before any of it runs.
leave_tracebacks_out()


# Not by Prefect, which tells what is wrong with a parameter in many lines.
@flow(name="pipeline", persist_result=False, validate_parameters=False)
def pipeline(
    experiment: ExperimentParameter,
    home: HomeParameter = ".permafrost",
    overrides: OverridesParameter = None,
    engine: EngineParameter = None,
    runtime: RuntimeParameter = None,
) -> PipelineResult:
    """Run a whole experiment; published artifacts are reused.

    Args:
        experiment: path of the experiment file, from the folder in which runs work; or its fields.
        home: where features and artifacts are stored: a folder, or the URL of an object store.
        overrides: changes of the experiment for this run, `path.to.field=value` each.
        engine: what runs the nodes: serial, prefect, dask, or dask=tcp://host:port; if not given,
            `runtime.engine` of the experiment, and `prefect` if that names none.
        runtime: how it is run, where that is to differ from what the experiment says.
    """
    with inside_flow_run():
        asked = request(experiment, home, overrides, engine, runtime)
        # To read and check it may take long, and fail.
        name_run(run_name(called(asked.experiment), asked.overrides))
        found = patiently(lambda: checked(asked.experiment, asked.home, asked.overrides))
        return run_in_flow(found, asked.engine)


def run_in_flow(found: Checked, engine: str | None) -> Any:
    """Run an experiment inside a flow run, and show its results there; the state in which it ends, of which
    Prefect hands a `PipelineResult` to whoever called."""
    started, name = time.monotonic(), found.nodes.experiment.name
    with tagged(found):
        by = engine_of(found, engine)
        result = run_graph(found.nodes, found.context, by, Terminal(), found.overrides)
    show_report(name, result)
    log_results(result)
    return Completed(message=counts(result, time.monotonic() - started), data=result)


@contextmanager
def tagged(found: Checked) -> Generator[None]:
    """The flow run that we are in is named by its experiment; inside, its stages are, too."""
    name = found.nodes.experiment.name
    tag = experiment_tag(name)
    name_run(run_name(name, found.overrides), [tag])
    with tags(tag):
        yield


def engine_of(found: Checked, engine: str | None) -> Engine:
    """The engine of this name, else the experiment's, else `prefect`."""
    runtime = found.nodes.experiment.runtime
    match choice := parse_engine(engine or runtime.engine or "prefect"):
        case Serial():
            return SerialEngine()
        case Prefect():
            return PrefectEngine(runtime.choose_workers())
        case Dask():
            # Imported here: it takes a second that no other run has to wait.
            from permafrost.flows.engine.dask import DaskEngine

            return DaskEngine(choice, runtime.choose_workers())


def run_checked(
    found: Checked,
    experiment: str | dict[str, Any],
    home: str,
    overrides: Sequence[str],
    engine: str | None = None,
) -> PipelineResult:
    """Run what was checked as a flow, with the configured Prefect server or one of our own; Prefect is shown
    the other arguments.

    Raises:
        PermafrostError: as `run_graph`.
    """

    # `pipeline` as Prefect shows it, of what is checked already: to lay a graph out takes seconds.
    @flow(name=pipeline.name, description=pipeline.description, persist_result=False)
    def run(
        experiment: str | dict[str, Any], home: str, overrides: list[str], engine: str | None
    ) -> PipelineResult:
        with known_to_the_server():
            return run_in_flow(found, engine)

    print_as_before()
    # The heartbeat thread of a flow run costs a fixed second at the end, and nothing watches it here.
    with (
        prefect_api() as is_ours,
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        state = run(experiment, home, list(overrides), engine, return_state=True)
        result = state.result(raise_on_failure=False)
        n_nodes, nothing_new = 1, False
        if not isinstance(result, BaseException):
            n_nodes, nothing_new = len(found.nodes.graph), not result.computed
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
