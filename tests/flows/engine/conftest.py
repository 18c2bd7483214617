"""A Dask cluster that the tests of a module share: its workers take seconds to start."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from permafrost.flows.companion import Program, companion
from permafrost.flows.engine import cluster_process
from permafrost.flows.engine.cluster import PRELOADED
from tests.flows.conftest import MadeOnce
from tests.flows.engine.plain_dask import PlainDask
from tests.flows.engine.runs_in_workers import SCRIPT, Run, experiment

ROOT = Path(__file__).parents[3]


def cluster_program() -> Program:
    """A scheduler with two workers, which can import the tests."""
    settings = {
        "path": [str(ROOT), *sys.path],
        "threads": 1,
        "workers": 2,
        "memory": "2 GB",
        "preload": [PRELOADED],
    }
    return Program(
        name="a cluster",
        file=cluster_process.__file__,
        arguments=[json.dumps(settings)],
        environment={"DASK_LOGGING__DISTRIBUTED": "critical", "PATH": os.environ["PATH"]},
        patience_s=200,
        advice=("", ""),
    )


@pytest.fixture(scope="package")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with two workers, which can import the tests."""
    with companion(cluster_program()) as line:
        yield json.loads(line)["scheduler"]


@pytest.fixture(scope="session")
def finished(tiny_bert: Path, made_once: MadeOnce) -> Path:
    """A folder with an experiment, and the home that one process makes of it."""

    def run(folder: Path) -> None:
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment(tiny_bert)))
        Run(folder, "serial").end()

    return made_once("run in one process", run)


@pytest.fixture
def start(finished: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts that experiment, or the one of the folder, in a home of its own; takes what `Run` does."""
    runs: list[Run] = []

    def started(
        engine: str,
        program: Path = SCRIPT,
        folder: Path = tmp_path,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        folder.mkdir(exist_ok=True)
        if not (folder / "experiment.yaml").exists():
            shutil.copy(finished / "experiment.yaml", folder / "experiment.yaml")
        runs.append(Run(folder, engine, program, environment))
        return runs[-1]

    yield started
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlainDask]:
    """Processes of Dask that people start; a scheduler runs."""
    (tmp_path / "dask").mkdir()
    dask = PlainDask(tmp_path / "dask")
    try:
        dask.scheduler()
        yield dask
    finally:
        dask.end()
