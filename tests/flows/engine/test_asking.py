"""What a task comes to when the way to its result is cut."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.asking import Tasks
from permafrost.flows.engine.cluster import Cluster
from permafrost.flows.engine.prefect import ClusterGoneError
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Resources


class Ended:
    """A future that has ended, and what each call of `result` raises, or returns at last."""

    def __init__(self, status: str, *results: Any) -> None:
        self.status, self._results = status, iter(results)

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        call(self)

    def result(self, timeout: float) -> Any:
        found = next(self._results)
        if isinstance(found, Exception):
            raise found
        return found

    def release(self) -> None:
        pass


class Client:
    """As much of a client as asking for a task touches."""

    status = "running"

    def __init__(self, future: Ended | None) -> None:
        self._future = future

    def submit(self, *arguments: Any, **options: Any) -> Ended:
        if self._future is None:
            raise ClosedClientError("Client is closed.")
        return self._future


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """The result of a task whose future has ended; None for a client that takes no task any more."""
    context = RunContext(tmp_path, RunRuntime())
    display = Display(Console(file=io.StringIO()))
    with Cluster(Dask("tcp://host:1"), 2, context, display) as cluster:
        tasks = Tasks(cluster)

        def asked(future: Ended | None) -> Any:
            monkeypatch.setattr(cluster, "start", lambda: Client(future))
            return tasks.run(
                print, name="fit", label="fit a", resources=Resources(), hear=lambda *_: None
            )

        yield asked


CLOSED = CommClosedError("in <TCP>: ConnectionResetError")


def test_a_result_that_a_dying_scheduler_does_not_bring_ends_the_run_and_is_no_failed_node(
    ask: Callable[..., Any],
) -> None:
    with pytest.raises(ClusterGoneError, match=r"^the Dask scheduler tcp://host:1 is gone"):
        ask(Ended("finished", CLOSED))


def test_an_error_of_the_node_stays_its_own(ask: Callable[..., Any]) -> None:
    for error in (OSError("disk is full"), TimeoutError("no answer from the lamp"), CLOSED):
        with pytest.raises(type(error)) as raised:
            ask(Ended("error", error))
        assert raised.value is error


def test_a_scheduler_that_is_slow_is_waited_for(ask: Callable[..., Any]) -> None:
    assert ask(Ended("finished", TimeoutError(), TimeoutError(), 7)) == 7


def test_a_client_that_is_closed_takes_no_task(ask: Callable[..., Any]) -> None:
    with pytest.raises(ClusterGoneError, match=r"^the Dask scheduler tcp://host:1 is gone"):
        ask(None)
