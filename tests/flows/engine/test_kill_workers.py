"""Dask workers are killed while they write; what the run leaves is what one process leaves."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from permafrost.flows.runs import read_run, run_path
from tests.flows.engine.runs_in_workers import N_FITS, Run, content, drafts, n_segments, writer_of


def check(run: Run, finished: Path, n_lost: int) -> None:
    out = run.end()
    assert out.count("the script runs") == 1
    assert content(run.home) == content(finished / "home")
    assert run.said().count("lost the Dask worker tcp://127.0.0.1:") == n_lost
    assert drafts(run.home) == []
    record = read_run(run_path(run.home, "tiny"))
    assert (record.engine, record.workers, record.threads) == ("dask", 2, (1,))


@pytest.mark.deep
def test_workers_killed_while_they_write_cost_nothing_but_time(
    start: Callable[..., Run], finished: Path
) -> None:
    run = start("dask")
    for pattern in ("features/*/.draft-*/*", "artifacts/fit/.draft-*"):
        run.until(lambda pattern=pattern: writer_of(run, pattern)).send_signal(signal.SIGKILL)
    check(run, finished, 2)
    assert "2 Dask workers of 1 thread each; dashboard http://127.0.0.1:" in run.said()
    assert "memory of 2 Dask workers at its peak: " in run.said()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
def test_two_workers_killed_at_random_times(
    start: Callable[..., Run], finished: Path, seed: int
) -> None:
    rng = random.Random(seed)
    run = start("dask")
    n_committed = n_segments(finished / "home")
    for pattern, n in (
        ("features/*/receipts/*/*", n_committed),
        ("artifacts/fit/*/artifact.json", N_FITS),
    ):
        wanted = rng.randrange(n)
        run.until(lambda p=pattern, n=wanted: len(list(run.home.glob(p))) >= n and run.workers())
        time.sleep(rng.uniform(0, 0.2))
        if workers := run.workers():
            rng.choice(workers).kill()
    check(run, finished, 2)
