"""However a run in Dask workers ends, nothing of its cluster is left, and the same command goes on."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.flows.engine.runs_in_workers import CELLS, COMMAND, SCRIPT, Run, content, n_segments

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]
BOUND_S = 2.0
"""From the signal to the end of the command, its server, its cluster and its workers."""
KILLED_BOUND_S = 10.0
"""The same for a run that is killed: none of its code runs any more, and what it started learns of that by
itself."""


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def committed(run: Run) -> dict[Path, int]:
    """Receipts of arrays of segments, and when each was written."""
    found = run.home.glob("features/*/receipts/**/[!.]*.json")
    return {path: path.stat().st_mtime_ns for path in found}


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [
        # SIGTERM, which is handled as SIGINT is, has `flows.test_stopping_runs` and the deployments.
        pytest.param(COMMAND, signal.SIGINT, 130, marks=pytest.mark.night),
        (COMMAND, signal.SIGKILL, -signal.SIGKILL),
        # A script does not listen to signals: it ends by them, by SIGTERM as by SIGKILL, and after Ctrl-C
        # when Python has tidied up, which can take it longer.
        pytest.param(SCRIPT, signal.SIGINT, -signal.SIGINT, marks=pytest.mark.night),
    ],
    ids=lambda v: v.stem if isinstance(v, Path) else str(getattr(v, "name", v)),
)
def test_cluster_and_workers_end_with_the_run(
    start: Callable[..., Run], finished: Path, program: Path, number: signal.Signals, code: int
) -> None:
    run = start("dask", program)
    run.until(lambda: n_segments(run.home) > 3)
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(run.workers()) == 2
    if program == COMMAND:
        family.append(psutil.Process(run.process.pid))
    began = time.monotonic()
    run.process.send_signal(number)
    while any(map(lives, family)):
        assert time.monotonic() - began < 60, [p for p in family if lives(p)]
        time.sleep(0.01)
    seconds = time.monotonic() - began
    run.process.communicate(timeout=60)
    assert run.process.returncode == code, run.said()
    assert seconds < (KILLED_BOUND_S if number == signal.SIGKILL else BOUND_S)
    kept = committed(run)
    again = start("serial")
    again.end()
    assert kept.items() <= committed(again).items(), "nothing that was committed is computed again"
    assert content(again.home) == content(finished / "home")


def test_an_interrupted_cell_ends_its_cluster_and_the_next_one_goes_on(
    start: Callable[..., Run], finished: Path
) -> None:
    run = start("dask", CELLS)
    run.until(lambda: n_segments(run.home) > 3)
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert len(run.workers()) == 2
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.process.stdout is not None
    assert any(line == "interrupted\n" for line in run.process.stdout), "the kernel has it"
    while any(map(lives, family)):
        assert time.monotonic() - began < 60, [p for p in family if lives(p)]
        time.sleep(0.01)
    assert time.monotonic() - began < BOUND_S
    kept = committed(run)
    assert "'report': 1" in run.end()
    assert kept.items() <= committed(run).items(), "nothing that was committed is computed again"
    assert content(run.home) == content(finished / "home")
