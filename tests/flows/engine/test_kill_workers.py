"""Dask workers are killed while they write; what the run leaves is what one process leaves."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from permafrost.flows.records.runs import read_run, run_path
from tests.flows.engine.counted import attempts_file
from tests.flows.engine.runs_in_workers import (
    COUNTED,
    DEADLINE_S,
    N_FITS,
    Run,
    content,
    drafts,
    n_segments,
    writer_of,
)

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]
CLOCK_NS = 20_000_000
"""How far the clock of files may lag."""


def check(run: Run, finished: Path, n_lost: int) -> None:
    out = run.end()
    assert out.count("the script runs") == 1
    assert content(run.home) == content(finished / "home")
    # On a loaded machine a worker that starts may be started again.
    assert run.said().count("lost the Dask worker tcp://127.0.0.1:") >= n_lost
    assert drafts(run.home) == []
    record = read_run(run_path(run.home, "tiny"))
    assert (record.engine, record.workers, record.threads) == ("dask", 2, (1,))
    # A line of ours for each, and none of what Dask logs of it.
    assert "Traceback" not in run.said()
    assert "distributed" not in run.said()


def test_workers_killed_while_they_write_cost_nothing_but_time(
    start: Callable[..., Run], finished: Path
) -> None:
    run = start("dask")
    for pattern in ("features/*/.draft-*/*", "artifacts/fit/.draft-*"):
        run.until(lambda pattern=pattern: writer_of(run, pattern)).send_signal(signal.SIGKILL)
    check(run, finished, 2)
    assert "2 Dask workers of 1 thread each; dashboard http://127.0.0.1:" in run.said()
    assert "memory of 2 Dask workers at its peak: " in run.said()


def attempts(run: Run) -> Iterator[tuple[int, int, str]]:
    """When each began, ns; its process; the folder of receipts or of the artifact that it is for."""
    for line in attempts_file(run.home).read_text().splitlines():
        began, process, what = line.split()
        yield int(began), int(process), what


def require_nothing_computed_twice(run: Run) -> None:
    """No attempt begins once its cell is committed, or its artifact published."""
    begun: dict[str, list[int]] = {}
    for began, _, what in attempts(run):
        begun.setdefault(what, []).append(began)
    done = {
        str(path.parent.relative_to(run.home)): path.stat().st_mtime_ns
        for pattern in ("features/*/receipts/*/span.json", "artifacts/[!ce]*/*/artifact.json")
        for path in run.home.glob(pattern)
    }
    assert begun.keys() == done.keys()
    late = {w: [t for t in begun[w] if t > done[w] + CLOCK_NS] for w in done}
    assert not any(late.values()), late


def kill_one(run: Run, rng: random.Random, pattern: str, total: int, spread_s: float) -> None:
    """Kill a worker that computes, when some files of a pattern are there and others are not."""

    def n_done() -> int:
        return len(list(run.home.glob(pattern)))

    at = rng.randrange(total - 4)
    run.until(lambda: n_done() >= at)
    time.sleep(rng.uniform(0, spread_s))
    known = {p for _, p, _ in attempts(run)}
    computing = run.until(lambda: [w for w in run.workers() if w.pid in known])
    with run.held_still():
        killed = rng.choice(computing)
        killed.kill()
        # On a loaded machine it lives on for a moment, and could be chosen a second time.
        killed.wait(DEADLINE_S)
        assert n_done() < total, "the machine was quicker than this test"


@pytest.mark.night
def test_two_workers_killed_at_random_times(start: Callable[..., Run], finished: Path) -> None:
    """One while segments are computed, one while heads are fitted."""
    rng = random.Random(0)
    run = start("dask", COUNTED)
    run.until(attempts_file(run.home).exists)
    n = n_segments(finished / "home")
    kill_one(run, rng, "features/*/receipts/*/span.json", n, 0.02)
    kill_one(run, rng, "artifacts/fit/*/artifact.json", N_FITS, 0.2)
    check(run, finished, 2)
    require_nothing_computed_twice(run)
