"""Experiments that run in a process of their own, and what they leave."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.drafts import DRAFT_PREFIX
from tests.flows.conftest import tiny_experiment

ROOT = Path(__file__).parents[3]
SCRIPT, COMMAND, CELLS, COUNTED = (
    Path(__file__).with_name(f"{name}_on_dask.py")
    for name in ("run", "command", "cells", "counted")
)
DEADLINE_S = 600.0
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
    """The script, or the command, under way in a process."""

    def __init__(
        self,
        folder: Path,
        engine: str,
        program: Path = SCRIPT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self._err = folder / "home", folder / "stderr"
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, program, folder / "experiment.yaml", self.home, engine],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    **(environment or {}),
                },
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
                # A shell that started the tests in the background has them ignore it.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def until(self, happened: Callable[[], Any]) -> Any:
        """What `happened` returns once it is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := happened()):
            assert self.process.poll() is None, f"the run has ended: {self.said()}"
            assert time.monotonic() < deadline, f"nothing happened: {self.said()}"
            time.sleep(0.005)
        return found

    @contextlib.contextmanager
    def held_still(self) -> Iterator[None]:
        """Nothing is committed, or given out, inside the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def workers(self) -> list[psutil.Process]:
        """Processes of Dask workers that live."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        servers = [p for p in children if "multiprocessing.forkserver" in " ".join(_command(p))]
        return [p for p in servers if _parent(p) in servers]

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


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None


def content(home: Path) -> dict[str, str | bytes]:
    """Every artifact's files by checksum, every table and shard. Not reports, which tell seconds, nor what an
    extraction says that it computed, which is less after a stop."""
    artifacts: dict[str, str | bytes] = {
        f"{m.ref}/{name}": record.sha256
        for m in ArtifactStore(home).all()
        if m.spec.stage not in ("report", "extract")
        for name, record in m.files.items()
    }
    files = [*home.glob("features/*/segments/*"), *home.glob("features/*/features.zarr/**/*")]
    return artifacts | {
        str(p.relative_to(home)): p.read_bytes()
        for p in files
        if p.is_file() and p.name != "zarr.json"
    }


def n_segments(home: Path) -> int:
    """Segments that are committed."""
    return len(list(home.glob("features/*/receipts/*/span.json")))


def drafts(home: Path) -> list[Path]:
    """Unfinished writes."""
    return [p for p in home.rglob(f"{DRAFT_PREFIX}*") if "-checkpoint" not in p.name]


def writer_of(
    run: Run, pattern: str, workers: Sequence[psutil.Process] | None = None
) -> psutil.Process | None:
    """A worker, of the run's own or of `workers`, that is writing, or has just written, a draft of this
    pattern."""
    for draft in run.home.glob(pattern):
        if (found := re.search(r"\.([0-9]+)\.[0-9]+-[0-9a-f]+", draft.name)) is not None:
            for worker in run.workers() if workers is None else workers:
                if worker.pid == int(found[1]):
                    return worker
    return None
