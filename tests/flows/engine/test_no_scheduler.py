"""Where no scheduler answers, a run ends at its first node, which is not tried again."""

import io
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine import cluster
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Graph
from permafrost.storage.errors import InputError
from tests.flows.engine.sums import total
from tests.ports import free_port


@flow(name="sums")
def sums(address: str, graph: Any, home: Path) -> None:
    with Display(Console(file=io.StringIO())) as display:
        DaskEngine(Dask(address), 2).run(graph, RunContext(home, RunRuntime()), display)


@pytest.mark.usefixtures("prefect_server")
def test_nobody_is_asked_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def client(address: str, **_: object) -> None:
        asked.append(address)
        raise OSError(f"Timed out trying to connect to {address}") from TimeoutError()

    monkeypatch.setattr(cluster, "Client", client)
    address = f"tcp://127.0.0.1:{free_port()}"
    graph = Graph([total("a", 1), total("b", 2), total("c", 3)])
    with pytest.raises(InputError, match=f"^no Dask scheduler answers at {address} .OSError"):
        sums(address, graph, tmp_path)
    assert asked == [address]
