"""Which engine a name means, and where it is looked for."""

import io
from pathlib import Path

import pytest
from distributed.comm import backends
from pydantic import ValidationError
from rich.console import Console

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine import dask
from permafrost.flows.engine.dask import DaskEngine
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask, Prefect, Serial, parse_engine
from permafrost.flows.graph import Graph
from permafrost.storage.errors import InputError


def test_engines_have_names() -> None:
    names = ("serial", "prefect", "dask", "dask=tcp://host:8786")
    choices = [Serial(), Prefect(), Dask(), Dask("tcp://host:8786")]
    assert [parse_engine(name) for name in names] == choices


@pytest.mark.parametrize("name", ["spark", "", "dask=", "dask=host:8786", "dask tcp://a:1", 3])
def test_other_names_are_refused_with_what_there_is(name: object) -> None:
    with pytest.raises(InputError, match=r"dask=tcp://host:port"):
        parse_engine(name)


@pytest.mark.parametrize(
    ("scheme", "like"),
    [("tpc", "; the nearest is 'tcp'"), ("zmq", ""), ("TCP", "; the nearest is 'tcp'")],
)
def test_an_address_of_another_kind_is_refused_with_those_that_dask_knows(
    scheme: str, like: str
) -> None:
    says = f"begins with '{scheme}', which Dask does not know{like}; it knows tcp, tls, "
    with pytest.raises(InputError, match=says):
        parse_engine(f"dask={scheme}://localhost:8786")


def test_addresses_of_all_kinds_that_dask_has_are_taken() -> None:
    assert {parse_engine(f"dask={scheme}://a:1") for scheme in backends} == {
        Dask(f"{scheme}://a:1") for scheme in backends
    }


def test_an_experiment_names_its_engine() -> None:
    assert RunRuntime(engine="dask").engine == "dask"
    with pytest.raises(ValidationError, match="there is no engine 'spark'"):
        RunRuntime(engine="spark")


@pytest.mark.parametrize(
    ("n_processors", "asked", "started"), [(2, 4, 2), (4, 4, 4), (1, 4, 2), (8, 3, 3)]
)
def test_no_more_workers_are_started_than_there_are_processors(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    n_processors: int,
    asked: int,
    started: int,
) -> None:
    monkeypatch.setattr(dask, "n_processors", lambda: n_processors)
    engine = DaskEngine(Dask(), asked)
    assert engine.n_workers == started
    with Display(Console(file=io.StringIO())) as display:
        engine.run(Graph([]), RunContext(tmp_path, RunRuntime()), display)
    news = f"{started} Dask workers and not {asked}: this process may use {n_processors} processors"
    assert (news in capsys.readouterr().err) == (started < asked)
    assert DaskEngine(Dask("tcp://host:8786"), asked).n_workers == 0
