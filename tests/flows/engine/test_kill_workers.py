"""Dask workers are killed while they write; what the run leaves is what one process leaves."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from permafrost.flows.runs import read_run, run_path
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.drafts import DRAFT_PREFIX
from tests.flows.conftest import MadeOnce, tiny_experiment

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("run_on_dask.py")
DEADLINE_S = 200.0
N_FITS = 8


def experiment(backbone: Path) -> dict[str, Any]:
    """Some twenty segments, and eight fits."""
    fields = tiny_experiment(backbone)
    task = fields["tasks"]["ratio 0.2"] | {"n_train": 160, "n_dev": 40, "n_test": 40}
    methods = {name: fields["methods"][name] for name in ("mean", "shuffled")}
    return fields | {
        "tasks": {"ratio 0.2": task},
        "methods": methods,
        "seeds": [0, 1, 2, 3],
        "report": {"title": "Workers that die"},
    }


class Run:
    """The script, under way in a process."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.home, self._err = folder / "home", folder / "stderr"
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, folder / "experiment.yaml", self.home, engine],
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    def until(self, happened: Callable[[], Any]) -> Any:
        """What `happened` returns once it is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := happened()):
            assert self.process.poll() is None, f"the run has ended: {self.said()}"
            assert time.monotonic() < deadline, f"nothing happened: {self.said()}"
            time.sleep(0.001)
        return found

    def workers(self) -> list[psutil.Process]:
        """Processes of Dask workers that live."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in children if "spawn_main" in " ".join(_command(p))]

    def said(self) -> str:
        """Standard error so far."""
        return self._err.read_text()

    def end(self) -> str:
        """Standard output; the run has succeeded."""
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, self.said()
        return out


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def finished(tiny_bert: Path, made_once: MadeOnce) -> Path:
    """What one process makes of it."""

    def run(folder: Path) -> None:
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment(tiny_bert)))
        Run(folder, "serial").end()

    return made_once("run in one process", run)


@pytest.fixture
def start(finished: Path, tmp_path: Path) -> Iterator[Callable[[], Run]]:
    runs: list[Run] = []

    def started() -> Run:
        (tmp_path / "experiment.yaml").write_text((finished / "experiment.yaml").read_text())
        runs.append(Run(tmp_path, "dask"))
        return runs[-1]

    yield started
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def content(home: Path) -> dict[str, str | bytes]:
    """Every artifact's files by checksum, but reports', which tell seconds; every table and shard."""
    artifacts: dict[str, str | bytes] = {
        f"{m.ref}/{name}": record.sha256
        for m in ArtifactStore(home).all()
        if m.spec.stage != "report"
        for name, record in m.files.items()
    }
    files = [*home.glob("features/*/segments/*"), *home.glob("features/*/features.zarr/**/*")]
    return artifacts | {
        str(p.relative_to(home)): p.read_bytes()
        for p in files
        if p.is_file() and p.name != "zarr.json"
    }


def drafts(home: Path) -> list[Path]:
    """Unfinished writes."""
    return [p for p in home.rglob(f"{DRAFT_PREFIX}*") if "-checkpoint" not in p.name]


def writer_of(run: Run, pattern: str) -> psutil.Process | None:
    """A worker that is writing, or has just written, a draft of this pattern."""
    for draft in run.home.glob(pattern):
        if (found := re.search(r"\.([0-9]+)\.[0-9]+-[0-9a-f]+", draft.name)) is not None:
            for worker in run.workers():
                if worker.pid == int(found[1]):
                    return worker
    return None


def check(run: Run, finished: Path, n_lost: int) -> None:
    out = run.end()
    assert out.count("the script runs") == 1
    assert content(run.home) == content(finished / "home")
    assert run.said().count("lost the Dask worker tcp://127.0.0.1:") == n_lost
    assert drafts(run.home) == []
    record = read_run(run_path(run.home, "tiny"))
    assert (record.engine, record.workers, record.threads) == ("dask", 2, (1,))


def test_workers_killed_while_they_write_cost_nothing_but_time(
    start: Callable[[], Run], finished: Path
) -> None:
    run = start()
    for pattern in ("features/*/.draft-*/*", "artifacts/fit/.draft-*"):
        run.until(lambda pattern=pattern: writer_of(run, pattern)).send_signal(signal.SIGKILL)
    check(run, finished, 2)
    assert "2 Dask workers of 1 thread each; dashboard http://127.0.0.1:" in run.said()
    assert "memory of 2 Dask workers at its peak: " in run.said()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
def test_two_workers_killed_at_random_times(
    start: Callable[[], Run], finished: Path, seed: int
) -> None:
    rng = random.Random(seed)
    run = start()
    n_segments = len(list((finished / "home").glob("features/*/segments/*")))
    for pattern, n in (
        ("features/*/receipts/*/*", n_segments),
        ("artifacts/fit/*/artifact.json", N_FITS),
    ):
        wanted = rng.randrange(n)
        run.until(lambda p=pattern, n=wanted: len(list(run.home.glob(p))) >= n and run.workers())
        time.sleep(rng.uniform(0, 0.2))
        if workers := run.workers():
            rng.choice(workers).kill()
    check(run, finished, 2)
