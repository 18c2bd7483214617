"""Workers that are killed or refused, and runs that are interrupted, while a node is computed."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from distributed import Client, Future
from prefect import flow
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine import prefect
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph, Node
from permafrost.storage.drafts import DRAFT_PREFIX
from permafrost.storage.durable import read_json
from tests.flows.engine.waiting import first_worker, mark, wait_for, waiting

pytestmark = pytest.mark.usefixtures("prefect_server")
DEADLINE_S = 600.0


@flow(name="waiting")
def run(scheduler: str, node: Node, home: Path) -> str:
    """How the node ended."""
    context = RunContext(home, RunRuntime())
    with Display(Console(stderr=True)) as display:
        outcomes = DaskEngine(Dask(scheduler), 2).run(Graph([node]), context, display)
    return outcomes[node.id].state


def wait_for_worker(home: Path) -> int:
    """Process of the worker that has begun."""
    deadline = time.monotonic() + DEADLINE_S
    while not (home / "first.json").exists():
        assert time.monotonic() < deadline, "no worker has begun"
        time.sleep(0.01)
    return first_worker(home)


def computed_by(node: Node, home: Path) -> int:
    return read_json(RunContext(home, RunRuntime()).artifacts.open(node.ref) / "pid.json")


@pytest.mark.deep
def test_another_worker_computes_what_a_killed_one_had(
    scheduler: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wait = prefect._wait

    def kill_first(ended):
        os.kill(wait_for_worker(tmp_path), signal.SIGKILL)
        return wait(ended)

    monkeypatch.setattr(prefect, "_wait", kill_first)
    node = waiting("slow")
    assert run(scheduler, node, tmp_path) == "computed"
    assert computed_by(node, tmp_path) != first_worker(tmp_path)
    said = capsys.readouterr().err
    assert "lost the Dask worker tcp://127.0.0.1:" in said
    assert "while it had 'slow', which goes to another" in said
    assert not list(tmp_path.rglob(f"{DRAFT_PREFIX}*")), "what it had begun to write is gone"


@pytest.mark.deep
def test_a_worker_that_finds_other_files_is_refused_and_another_computes(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = waiting("unlike", unlike=True)
    assert run(scheduler, node, tmp_path) == "computed"
    assert computed_by(node, tmp_path) != first_worker(tmp_path)
    said = capsys.readouterr().err
    assert "refused the Dask worker tcp://127.0.0.1:" in said
    assert "it has another model.safetensors" in said


@pytest.mark.deep
def test_what_waits_at_a_refused_worker_is_begun_there_and_nothing_else(
    scheduler: str, tmp_path: Path
) -> None:
    with Client(scheduler, set_as_default=False) as client:
        # One that an earlier test killed is started again.
        client.wait_for_workers(2, timeout=DEADLINE_S)
        one, other = client.scheduler_info()["workers"]
        client.run(mark, 1, workers=[one])

        def ask(function: Callable[..., object], argument: object) -> Future:
            return client.submit(function, argument, resources={"mark": 1}, pure=False)

        begun = [ask(wait_for, tmp_path / "go"), ask(abs, -1), ask(abs, -2)]
        deadline = time.monotonic() + DEADLINE_S
        while len(client.processing()[one]) < 3:
            assert time.monotonic() < deadline
        client.run(mark, 0, workers=[one])
        later = ask(abs, -3)
        (tmp_path / "go").touch()
        assert [f.result(timeout=DEADLINE_S) for f in begun] == [None, 1, 2]
        client.run(mark, 1, workers=[other])
        assert later.result(timeout=DEADLINE_S) == 3
        assert client.who_has([later]) == {later.key: (other,)}
        client.run(mark, 0)


@pytest.mark.deep
def test_who_interrupts_a_run_does_not_wait_for_its_workers(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script does, whose Ctrl-C is Python's KeyboardInterrupt."""

    def interrupted(ended: object) -> None:
        wait_for_worker(tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(prefect, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(scheduler, waiting("slow"), tmp_path)
    # The worker lives, and is free for others.
    assert psutil.pid_exists(first_worker(tmp_path))
    monkeypatch.undo()
    assert run(scheduler, waiting("slow"), tmp_path) == "computed"
