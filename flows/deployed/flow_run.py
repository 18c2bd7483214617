"""What all our flows do beside their work: tell who runs them and what went wrong, clear runs that were
killed, record a stop, and try again what fails for a passing reason before there are stages."""

import datetime
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TypeVar
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run as this_run
from prefect.states import Crashed

from permafrost.flows.deployed.killed_runs import clear_killed_runs, say_who_runs
from permafrost.flows.deployed.told_in_a_line import told_in_a_line
from permafrost.flows.engine.curable import DELAYS_S, is_curable
from permafrost.flows.stopping import STOP

LAST_RECORD_S = 0.6
"""Maximum time for recording a stop, so that the process still ends within two seconds."""
T = TypeVar("T")


@contextmanager
def inside_flow_run() -> Generator[None]:
    """For the whole of a flow run that Prefect started."""
    # Listening is inside: its end ends a process that was asked to stop, which has to tell the server first.
    with known_to_the_server(), _listening(), told_in_a_line():
        yield


@contextmanager
def known_to_the_server() -> Generator[None]:
    """The server is told which process the run is, which others were killed, and of a stop if one comes."""
    run = UUID(this_run.id)
    # What a server does not take must not end a run.
    with suppress(HTTPError, PrefectException):
        say_who_runs(run)
        clear_killed_runs(run, get_run_logger(), datetime.datetime.now(datetime.UTC))
    with STOP.last_act(partial(_record_stop, run), LAST_RECORD_S):
        yield


def is_deployed() -> bool:
    """Whether the flow run that we are in is one of a deployment."""
    # Not by `prefect.runtime.deployment`, which asks the server of a run that is of none, and it may be down.
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    return run is not None and run.deployment_id is not None


def patiently(act: Callable[[], T]) -> T:
    """What `act` returns; a run of a deployment tries again if it fails for a passing reason.

    Raises:
        Exception: as `act` does, at last.
    """
    for delay in DELAYS_S if is_deployed() else ():
        try:
            return act()
        except Exception as error:
            if not is_curable(error):
                raise
            get_run_logger().warning("trying again in %s s: %s", delay, error)
        sleep(delay)
    return act()


def sleep(seconds: float) -> None:
    """Wait, unless the process is asked to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        STOP.check()
        time.sleep(0.1)


def _listening() -> AbstractContextManager[None]:
    """A deployed run has a process to itself, and there Prefect alone listens to signals: it waits for nodes
    that do not look."""
    return STOP.listening() if is_deployed() else nullcontext()


def _record_stop(run: UUID) -> None:
    """Tell the server that a run has been stopped, if Prefect has not, as it waits for stages that do not
    check."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        # Who cancels a run is told by Prefect's worker, which saw to it that we were stopped.
        if state is None or not (state.is_final() or state.is_cancelling()):
            client.set_flow_run_state(run, Crashed(message=f"Stopped by {STOP.cause}."), force=True)
