"""Dask workers that are killed: one while segments are computed, one while heads are fitted."""

import random
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.campaign.homes import Homes
from tests.flows.engine.counted import attempts_file
from tests.flows.engine.runs_in_workers import COUNTED, N_FITS, Run, experiment, n_segments
from tests.flows.engine.test_kill_workers import (
    check,
    kill_one,
    require_nothing_computed_twice,
)


def trial(homes: Homes, folder: Path, rng: random.Random) -> dict[str, Any]:
    """A run in two workers that loses two: the same bytes, and nothing computed twice.

    Raises:
        AssertionError: something is lost, wrong, or was done again.
    """
    finished, mine = folder / "finished", folder / "mine"
    if not (finished / "done").exists():
        finished.mkdir(parents=True)
        text = yaml.safe_dump(experiment(homes.folder / "model"))
        (finished / "experiment.yaml").write_text(text)
        Run(finished, "serial").end()
        (finished / "done").touch()
    mine.mkdir()
    shutil.copy(finished / "experiment.yaml", mine)
    run = Run(mine, "dask", COUNTED)
    try:
        run.until(attempts_file(run.home).exists)
        n = n_segments(finished / "home")
        kill_one(run, rng, "features/*/receipts/*/span.json", n, 0.02)
        kill_one(run, rng, "artifacts/fit/*/artifact.json", N_FITS, 0.2)
        check(run, finished, 2)
        require_nothing_computed_twice(run)
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        shutil.rmtree(mine)
    return {"counts": {"workers lost": 2}}
