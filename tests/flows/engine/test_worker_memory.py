"""A worker that needs more memory than it may have: who, how much, what to set; and only its node fails."""

import re
from pathlib import Path

import pytest
from prefect import flow
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph, Node
from permafrost.storage.errors import PermafrostError
from tests.flows.engine.failing import greedy

LIMIT = 2 * 10**9
"""Bytes that a worker of these tests may hold. Dask pauses it at 80 %, and ends it at 95 %."""
DIED = 4

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("prefect_server"),
]


@flow(name="greedy")
def run(
    scheduler: str, nodes: list[Node], home: Path, display: Display
) -> dict[str, BaseException | None]:
    """The errors of nodes."""
    context = RunContext(home, RunRuntime())
    with display:
        outcomes = DaskEngine(Dask(scheduler), 2).run(Graph(nodes), context, display)
    return {o.node.label: o.error for o in outcomes.values()}


def test_a_node_that_needs_too_much_is_given_up_and_no_other(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modest = [greedy(f"modest {n}", LIMIT // 4) for n in range(6)]
    nodes = [greedy("greedy", LIMIT, until="never"), *modest]
    errors = run(scheduler, nodes, tmp_path, Display(Console(stderr=True)))
    error = errors.pop("greedy")
    assert isinstance(error, PermafrostError)
    held = r"\d\.\d\d GB of the 2\.00 GB that it may hold"
    assert re.match(
        rf"'greedy' was given up: {DIED} Dask workers were lost one after another that had it; the last one "
        rf"held {held}\. Set runtime\.worker_memory_bytes to more",
        str(error),
    )
    assert errors == dict.fromkeys((node.label for node in modest), None)
    said = capsys.readouterr().err
    assert len(re.findall(rf"the Dask worker \S+ holds {held}: Dask ends it", said)) == DIED
    assert said.count("while it had 'greedy', which goes to another") == DIED
    (peaks,) = re.findall(r"of 4 that were lost, as far as they told: ([0-9., ]+)", said)
    assert all(float(peak) > 1.5 for peak in peaks.split(", "))
    assert "Traceback" not in said


class Listening(Display):
    """Leaves a file when it is told of a paused worker."""

    def __init__(self, file: Path) -> None:
        super().__init__(Console(stderr=True))
        self._file = file

    def tell(self, text: str, style: str = "") -> None:
        super().tell(text, style)
        if "has paused" in text:
            self._file.touch()


def test_a_worker_that_dask_pauses_is_named_once_and_goes_on_when_it_holds_less(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    much = greedy("much", LIMIT * 87 // 100, until="told")
    nodes = [much, *(greedy(f"modest {n}", 0) for n in range(6))]
    errors = run(scheduler, nodes, tmp_path, Listening(tmp_path / "told"))
    assert errors == dict.fromkeys((node.label for node in nodes), None)
    said = capsys.readouterr().err
    (line,) = re.findall("Dask has paused .*", said)
    assert re.match(
        r"Dask has paused the worker tcp://127\.0\.0\.1:\d+, which holds too much of the 2\.00 GB that it "
        r"may hold: it begins nothing more until it holds less\. Should that last, set "
        r"runtime\.worker_memory_bytes to more",
        line,
    )
    assert "lost the Dask worker" not in said
