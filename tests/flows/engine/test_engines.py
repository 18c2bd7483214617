"""The contract of an engine, over every engine there is."""

import io
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.engine import Engine
from permafrost.flows.engine.prefect import PrefectEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from tests.flows.engine.sums import backbone_total, total

Run = Callable[[Graph, Path], Mapping[str, Outcome]]

pytestmark = pytest.mark.usefixtures("prefect_server")


def run_with(engine: Engine, graph: Graph, home: Path) -> Mapping[str, Outcome]:
    runtime = RunRuntime.model_validate({"extract": {"device": "cpu"}})
    with Display(Console(file=io.StringIO())) as display:
        return engine.run(graph, RunContext(home, runtime), display)


@flow(name="sums")
def in_a_flow(engine: Any, graph: Graph, home: Path) -> tuple[Mapping[str, Outcome], object]:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return run_with(engine, graph, home), context.flow_run.id


@pytest.fixture(params=["serial", "prefect", "dask"])
def engine(request: pytest.FixtureRequest) -> Engine:
    match request.param:
        case "serial":
            return SerialEngine()
        case "prefect":
            return PrefectEngine(2)
        case _:
            return DaskEngine(Dask(request.getfixturevalue("scheduler")), 2)


@pytest.fixture
def run(engine: Engine) -> Run:
    if isinstance(engine, SerialEngine):
        return lambda graph, home: run_with(engine, graph, home)
    return lambda graph, home: in_a_flow(engine, graph, home)[0]


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr("permafrost.flows.context.n_cores", lambda: 8)
    yield
    torch.set_num_threads(before)


class TestEveryEngine:
    def test_runs_everything_in_an_order_that_works(self, run: Run, tmp_path: Path) -> None:
        a, b = total("a", 1), total("b", 2)
        c = total("c", 4, a, b)
        d = total("d", 8, c, a)
        graph = Graph([d, c, b, a])
        outcomes = run(graph, tmp_path)
        assert {o.node.label: o.state for o in outcomes.values()} == dict.fromkeys(
            "abcd", "computed"
        )
        folder = RunContext(tmp_path, RunRuntime()).artifacts.open(d.ref)
        assert read_json(folder / "sum.json") == 8 + (4 + 1 + 2) + 1

    def test_reuses_what_is_done(self, run: Run, tmp_path: Path) -> None:
        a = total("a", 1)
        run(Graph([a]), tmp_path)
        b = total("b", 2, a)
        outcomes = run(Graph([a, b]), tmp_path)
        assert {o.node.label: o.state for o in outcomes.values()} == {
            "a": "reused",
            "b": "computed",
        }

    def test_a_failure_stops_what_needs_it_and_nothing_else(self, run: Run, tmp_path: Path) -> None:
        bad, good = total("bad", -1), total("good", 1)
        graph = Graph([bad, good, total("below", 2, bad), total("other", 4, good)])
        outcomes = {o.node.label: o for o in run(graph, tmp_path).values()}
        assert {label: o.state for label, o in outcomes.items()} == {
            "bad": "failed",
            "good": "computed",
            "below": "skipped",
            "other": "computed",
        }
        assert isinstance(outcomes["bad"].error, InputError)
        assert outcomes["below"].because is graph[bad.id]
        again = {o.node.label: o.state for o in run(graph, tmp_path).values()}
        assert again["good"] == again["other"] == "reused"

    def test_threads_of_a_node_do_not_depend_on_what_runs_beside_it(
        self, engine: Engine, run: Run, tmp_path: Path, three_cores: None
    ) -> None:
        first, second = total("first", 1), total("second", 2)
        graph = Graph([first, second, total("last", 4, first, second), backbone_total("all", 8)])
        run(graph, tmp_path)
        artifacts = RunContext(tmp_path, RunRuntime()).artifacts
        threads = {n.label: artifacts.manifest(n.ref).provenance["threads"] for n in graph}
        # A worker has as many as its neighbours, also for the backbone.
        alone = 1 if engine.name == "dask" else 3
        assert threads == {"first": 1, "second": 1, "last": 1, "all": alone}
        assert torch.get_num_threads() == 3, "the user's own stay"


@pytest.mark.parametrize("engine", ["prefect", "dask"], indirect=True)
def test_prefect_shows_every_node_by_its_label_with_what_it_needs(
    engine: Engine, tmp_path: Path
) -> None:
    a, b = total("a · first", 1), total("b", 2)
    c = total("c [k=2]", 4, a, after=(b,))
    _, flow_run = in_a_flow(engine, Graph([a, b, c]), tmp_path)
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    deadline = time.monotonic() + 200
    while True:
        with get_client(sync_client=True) as client:
            runs = client.read_task_runs(flow_run_filter=wanted)
        if all(r.state is not None and r.state.is_final() for r in runs) and len(runs) == 3:
            break
        assert time.monotonic() < deadline, "the server records runs after a while"
        time.sleep(0.1)
    found = {r.name: r for r in runs}
    assert set(found) == {"a · first", "b", "c [k=2]"}
    needs = {i.id for i in found["c [k=2]"].task_inputs["wait_for"]}
    assert needs == {found["a · first"].id, found["b"].id}
    assert not found["a · first"].task_inputs.get("wait_for")
