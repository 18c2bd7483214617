"""The pipeline flow: corpus -> extract -> fit -> score -> report, over methods x tasks x seeds."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from uuid import UUID

from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import TaskRunSort
from prefect.runtime import deployment as this_deployment
from prefect.runtime import flow_run as this_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed, Crashed

from permafrost.flows.context import RunRuntime
from permafrost.flows.engine.choice import Dask, EngineChoice, Prefect, Serial, parse_engine
from permafrost.flows.engine.engine import Engine
from permafrost.flows.engine.prefect import PrefectEngine
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.running import (
    Checked,
    PipelineResult,
    checked,
    raise_first,
    run_graph,
    run_serially,
)
from permafrost.flows.server import prefect_api
from permafrost.flows.shown_in_prefect import (
    called,
    counts,
    experiment_tag,
    log_results,
    name_run,
    print_as_before,
    run_name,
    show_report,
)
from permafrost.flows.stopping import STOP
from permafrost.flows.terminal import Terminal
from permafrost.flows.told_in_a_line import leave_tracebacks_out, told_in_a_line
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

__all__ = [
    "PipelineResult",
    "pipeline",
    "raise_first",
    "run_checked",
    "run_serially",
]

LAST_RECORD_S = 0.6
"""Maximum time for recording a stop, so that the process still ends within two seconds."""
MOST_READ = 200
"""Task runs that a server tells of at once."""
RECORDING_S = 5.0
"""Maximum time to wait for the server to record a run."""


# When the module is imported, as parameters that the flow does not have are refused before any of it runs.
leave_tracebacks_out()


# Not by Prefect, which tells what is wrong with a parameter in many lines.
@flow(name="pipeline", persist_result=False, validate_parameters=False)
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
    with _listening(), _stop_recorded(), told_in_a_line():
        check_types(experiment, home, overrides, engine)
        # To read and check it may take long, and fail.
        name_run(run_name(called(experiment), overrides or []))
        return _run(checked(experiment, home, overrides or []), engine)


def _run(found: Checked, engine: str | None) -> Any:
    """Run an experiment inside a flow run, and show its results there; the state in which it ends, of which
    Prefect hands a `PipelineResult` to whoever called."""
    nodes, runtime = found.nodes, found.nodes.experiment.runtime
    choice, name = parse_engine(engine or runtime.engine or "prefect"), nodes.experiment.name
    started = time.monotonic()
    tag = experiment_tag(name)
    name_run(run_name(name, found.overrides), [tag])
    with tags(tag):
        by = _engine(choice, runtime)
        result = run_graph(nodes, found.context, by, Terminal(), found.overrides)
    show_report(name, result)
    log_results(result)
    return Completed(message=counts(result, time.monotonic() - started), data=result)


def check_types(experiment: object, home: object, overrides: object, engine: object) -> None:
    """Check what a deployment or whoever starts a run of it gives.

    Raises:
        InputError: a parameter is of the wrong type.
    """
    are_texts = isinstance(overrides, list) and all(isinstance(o, str) for o in overrides)
    for name, value, is_right, wanted in (
        ("experiment", experiment, isinstance(experiment, str | dict), "the path of a file"),
        ("home", home, isinstance(home, str), "the path of a folder, or a URL"),
        ("overrides", overrides, overrides is None or are_texts, "a list of texts: ['seeds=[0]']"),
        ("engine", engine, engine is None or isinstance(engine, str), "its name, or null"),
    ):
        if not is_right:
            raise InputError(
                f"the parameter {name} is {quoted(value)}, of type {type(value).__name__}; give {wanted}"
            )


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
        with _stop_recorded():
            return _run(found, engine)

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
