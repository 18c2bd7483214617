"""Which Dask workers may have a task."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.cluster import Cluster
from permafrost.flows.engine.progress import Display
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Resources

BACKBONE, OTHER = Resources(backbone=True), Resources()


@pytest.fixture
def said() -> list[str]:
    return []


def cluster(home: Path, said: list[str], scheduler: str | None) -> Cluster:
    def tell(text: str, style: str = "") -> None:
        said.append(text)

    display = cast(Display, SimpleNamespace(tell=tell))
    return Cluster(Dask(scheduler), 2, RunContext(home, RunRuntime()), display)


def joins(made: Cluster, address: str, *resources: str) -> None:
    message: dict[str, Any] = {"address": address, "name": address, "host": "box", "limit": 0}
    made.roster.checked(
        message | {"resources": list(resources), "status": "running", "problem": ""}
    )


def test_the_backbone_needs_a_gpu_once_a_worker_has_had_one(
    tmp_path: Path, said: list[str]
) -> None:
    made = cluster(tmp_path, said, "tcp://s:1")
    joins(made, "tcp://a:1")
    assert [made.needs(r).keys() for r in (BACKBONE, OTHER)] == [{""}, {""}]
    assert made.needs(BACKBONE) == {"": 1}
    assert said == [
        "no Dask worker has the resource GPU, so any of them may run the backbone; start those that have a "
        "GPU with --resources GPU=1"
    ], "once"
    joins(made, "tcp://b:1", "GPU")
    assert made.needs(BACKBONE) == {"": 1, "GPU": 1}
    made.roster.removed("tcp://b:1")
    assert made.needs(BACKBONE) == {"": 1, "GPU": 1}, "and not the other one, which has none"
    assert made.needs(OTHER) == {"": 1}


def test_workers_of_a_run_of_its_own_are_all_alike(tmp_path: Path, said: list[str]) -> None:
    made = cluster(tmp_path, said, None)
    joins(made, "tcp://a:1")
    assert made.needs(BACKBONE) == {"": 1}
    assert said == []
