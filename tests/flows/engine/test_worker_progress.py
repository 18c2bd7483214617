"""How a node gets on in a worker is seen in the terminal and in Prefect."""

import time
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.context import FlowRunContext
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine import progress
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.hearing import Heard
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph
from tests.flows.engine.pacing import pacing

DEADLINE_S = 600.0


class Bars(Display):
    """Notes what is drawn."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True))
        self.drawn: list[tuple[str, float, str]] = []
        self.moves: dict[Any, float] = {}

    def open(self, description: str, total: float, unit: str) -> Any:
        self.drawn.append((description, total, unit))
        return super().open(description, total, unit)

    def move(self, bar: Any, amount: float, note: str = "") -> None:
        self.moves[bar] = self.moves.get(bar, 0.0) + amount
        super().move(bar, amount, note)


@flow(name="pacing")
def run(scheduler: str, home: Path, display: Display) -> Any:
    """The flow run."""
    flow_run = FlowRunContext.get()
    assert flow_run is not None
    assert flow_run.flow_run is not None
    with display:
        graph, context = Graph([pacing("a walk [k=2]")]), RunContext(home, RunRuntime())
        DaskEngine(Dask(scheduler), 2).run(graph, context, display)
    return flow_run.flow_run.id


@pytest.mark.deep
@pytest.mark.usefixtures("prefect_server")
def test_progress_of_a_worker_is_a_bar_and_an_artifact_of_prefect(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However short it is.
    monkeypatch.setattr(progress, "SLOW_S", -1.0)
    monkeypatch.setattr(progress, "ARTIFACT_EVERY_S", -1.0)
    display = Bars()
    flow_run = run(scheduler, tmp_path, display)
    assert display.drawn == [("stages", 1, "stages"), ("a walk [k=2]", 4, "steps")]
    assert list(display.moves.values()) in ([1, 4], [4, 1])
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    deadline = time.monotonic() + DEADLINE_S
    with get_client(sync_client=True) as client:
        while True:
            shown = client.read_artifacts(artifact_filter=wanted)
            if [a.data for a in shown] == [100.0]:
                break
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
    assert (shown[0].type, shown[0].description) == ("progress", r"a walk \[k=2\]")


class Told:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, task: str, total: int | float, unit: str) -> None:
        self.calls.append(("start", task, total, unit))

    def advance(self, amount: int | float, note: str = "") -> None:
        self.calls.append(("advance", amount, note))

    def finish(self) -> None:
        self.calls.append(("finish",))


def test_a_node_that_another_worker_begins_anew_has_a_new_bar() -> None:
    told = Told()
    heard = Heard(told)
    heard("begin")
    heard("advance", 1, "of a worker that was lost")
    for _ in range(2):
        heard("start", "walk", 4, "steps")
        heard("advance", 1, "")
    heard("finish")
    heard.end()
    begun = [("start", "walk", 4, "steps"), ("advance", 1, ""), ("finish",)]
    assert told.calls == begun * 2
