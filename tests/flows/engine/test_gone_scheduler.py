"""A scheduler that is killed ends a run with a clear error; the same command goes on from there."""

import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.flows.engine.plain_dask import GIVEN_IS_GONE, PlainDask
from tests.flows.engine.runs_in_workers import (
    COMMAND,
    N_FITS,
    Run,
    content,
    drafts,
    n_segments,
    writer_of,
)

OWN = (
    r"the Dask scheduler of this run is gone, and with it what its workers were computing; what was "
    r"committed is kept: run the same command again, which goes on from there"
)
DEADLINE_S = 600.0
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


@pytest.mark.night
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
    again = start("serial", COMMAND)
    again.end()
    assert {p: p.stat().st_mtime_ns for p in kept} == kept, "nothing was computed again"
    assert content(again.home) == content(finished / "home")
    assert drafts(again.home) == []


def stopped_in_a_fit(run: Run, workers: Sequence[psutil.Process]) -> psutil.Process | None:
    """A worker that has begun a fit, which it will not end."""
    if (writer := writer_of(run, "artifacts/fit/.draft-*", workers)) is None:
        return None
    writer.send_signal(signal.SIGSTOP)
    if writer_of(run, "artifacts/fit/.draft-*", [writer]) is not None:
        return writer
    writer.send_signal(signal.SIGCONT)  # it had ended the fit by then
    return None


def test_a_run_whose_given_scheduler_dies_in_a_fit_goes_on_at_another(
    start: Callable[..., Run], finished: Path, plain: PlainDask
) -> None:
    line = "dask worker tcp://127.0.0.1:8786 --nthreads 1"
    plain.start("one", line)
    run = start(f"dask={plain.address}", COMMAND)
    fits = "artifacts/fit/*/artifact.json"
    run.until(lambda: list(run.home.glob(fits)))
    workers = plain.family("one")
    stopped = run.until(lambda: stopped_in_a_fit(run, workers))
    plain.kill("scheduler")
    require_clear_error(run, GIVEN_IS_GONE)
    stopped.send_signal(signal.SIGCONT)
    require_end(workers)  # Dask's own end when their scheduler is gone
    committed = [*run.home.glob(fits), *run.home.glob("features/*/receipts/**/[!.]*.json")]
    kept = {p: p.stat().st_mtime_ns for p in committed}
    n_fits = len(list(run.home.glob(fits)))
    assert 0 < n_fits < N_FITS
    plain.scheduler()
    plain.start("two", line)
    again = start(f"dask={plain.address}", COMMAND)
    (computed,) = re.findall(r"computed: ([^;\n]*)", again.end())
    assert re.findall(r"(\d+) (extract|fit)\b", computed) == [(str(N_FITS - n_fits), "fit")]
    assert {p: p.stat().st_mtime_ns for p in kept} == kept, "nothing was computed again"
    assert content(again.home) == content(finished / "home")
    assert drafts(again.home) == []
