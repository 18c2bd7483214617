"""A scheduler that is killed ends a run with a clear error; the same command goes on from there."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.flows.engine.runs_in_workers import COMMAND, Run, content, drafts, n_segments

OWN = (
    r"the Dask scheduler of this run is gone, and with it what its workers were computing; what was "
    r"committed is kept: run the same command again, which goes on from there"
)
DEADLINE_S = 120.0
pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]


def require_end(family: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(family, DEADLINE_S)
    assert not left


def require_clear_error(run: Run, message: str) -> None:
    """One line, exit code 1."""
    run.process.communicate(timeout=DEADLINE_S)
    assert run.process.returncode == 1, run.said()
    errors = [line for line in run.said().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, run.said()
    assert re.search(f"^error: {message}", errors[0]), run.said()
    assert "Traceback" not in run.said()


def test_a_run_whose_own_scheduler_dies_goes_on_at_the_next_start(
    start: Callable[..., Run], finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "scratch").mkdir()
    run = start("dask", COMMAND, environment={"TMPDIR": str(tmp_path / "scratch")})
    run.until(lambda: n_segments(run.home) > 3)
    family = psutil.Process(run.process.pid).children(recursive=True)
    (cluster,) = [p for p in family if "cluster_process" in " ".join(p.cmdline())]
    assert list((tmp_path / "scratch").glob("permafrost-dask-*"))
    cluster.send_signal(signal.SIGKILL)
    require_clear_error(run, OWN)
    require_end(family)
    assert not list((tmp_path / "scratch").glob("permafrost-dask-*"))
    kept = {p: p.stat().st_mtime_ns for p in run.home.glob("features/*/receipts/**/[!.]*.json")}
    assert len(kept) > 3
    again = start("dask", COMMAND)
    again.end()
    assert {p: p.stat().st_mtime_ns for p in kept} == kept, "nothing was computed again"
    assert content(again.home) == content(finished / "home")
    assert drafts(again.home) == []
