"""Which engine a name means, and where it is looked for."""

import pytest
from pydantic import ValidationError

from permafrost.flows.context import RunRuntime
from permafrost.flows.engine.choice import Dask, Prefect, Serial, parse_engine
from permafrost.storage.errors import InputError


def test_engines_have_names() -> None:
    names = ("serial", "prefect", "dask", "dask=tcp://host:8786")
    choices = [Serial(), Prefect(), Dask(), Dask("tcp://host:8786")]
    assert [parse_engine(name) for name in names] == choices


@pytest.mark.parametrize("name", ["spark", "", "dask=", "dask=host:8786", "dask tcp://a:1", 3])
def test_other_names_are_refused_with_what_there_is(name: object) -> None:
    with pytest.raises(InputError, match=r"dask=tcp://host:port"):
        parse_engine(name)


def test_an_experiment_names_its_engine() -> None:
    assert RunRuntime(engine="dask").engine == "dask"
    with pytest.raises(ValidationError, match="there is no engine 'spark'"):
        RunRuntime(engine="spark")
