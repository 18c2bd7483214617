"""A node that fails in a worker: what it logged, and where it failed, are told once, in the terminal and in
Prefect."""

import io
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterTaskRunId,
)
from prefect.context import FlowRunContext
from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph
from tests.flows.engine.failing import failing

pytestmark = pytest.mark.usefixtures("prefect_server")
DEADLINE_S = 600.0


@flow(name="failing")
def outcome(where: Dask, home: Path) -> tuple[Outcome, Any]:
    """How the node ended, and the flow run."""
    flow_run = FlowRunContext.get()
    assert flow_run is not None
    assert flow_run.flow_run is not None
    context, node = RunContext(home, RunRuntime()), failing("lamp [k=2]")
    with Display(Console(stderr=True)) as display:
        outcomes = DaskEngine(where, 1).run(Graph([node]), context, display)
    return outcomes[node.id], flow_run.flow_run.id


def in_prefect(flow_run: Any) -> tuple[Any, list[str]]:
    """The task run of the node, and what was logged to it."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    deadline = time.monotonic() + DEADLINE_S
    with get_client(sync_client=True) as client:
        while True:
            for found in client.read_task_runs(flow_run_filter=wanted):
                of_it = LogFilter(task_run_id=LogFilterTaskRunId(any_=[found.id]))
                logs = [log.message for log in client.read_logs(of_it)]
                whole = "\n".join(logs)
                ended = found.state is not None and found.state.is_final()
                if ended and "a lamp is out" in whole and "raise ArithmeticError" in whole:
                    return found, logs
            assert time.monotonic() < deadline, "the server knows of no end, or of no logs"
            time.sleep(0.1)


def require_told_once(text: str, note: str) -> None:
    assert len(re.findall(r"a lamp is out in process \d+", text)) == 1, text
    assert re.search(r"some\.library: a lamp is out in process \d+", text)
    assert text.count("in run\n    raise ArithmeticError(") == 1, f"the worker's traceback: {text}"
    assert text.count(f"ArithmeticError: three is not four\n{note}") == 1, text


Shown = Callable[[], str]


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What this process and its workers have printed. Prefect prints to the standard error of when it was
    imported."""
    file = io.StringIO()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            monkeypatch.setattr(handler, "console", Console(file=file, markup=False))
    return lambda: file.getvalue() + "".join(capfd.readouterr())


def check(where: Dask, home: Path, shown: Shown) -> None:
    found, flow_run = outcome(where, home)
    printed = shown()
    assert found.state == "failed"
    assert isinstance(found.error, ArithmeticError)
    assert str(found.error) == "three is not four"
    (note,) = found.error.__notes__
    assert re.match(r"on worker .+ at tcp://127\.0\.0\.1:\d+$", note)
    require_told_once(printed, note)
    task_run, logs = in_prefect(flow_run)
    assert task_run.name == "lamp [k=2]"
    assert task_run.state.name == "Failed"
    assert "ArithmeticError: three is not four" in task_run.state.message
    require_told_once("\n".join(logs), note)


@pytest.mark.deep
def test_an_error_in_a_worker_is_told_once_with_its_place(
    scheduler: str, tmp_path: Path, shown: Shown
) -> None:
    check(Dask(scheduler), tmp_path, shown)


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_worker_of_a_cluster_of_ours_does_not_tell_it_again(tmp_path: Path, shown: Shown) -> None:
    """It writes to our terminal, too, with what a plug-in has set up."""
    check(Dask(), tmp_path, shown)
